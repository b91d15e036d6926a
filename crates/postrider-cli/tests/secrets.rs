//! G-11 from end to end: secrets and contents of events are planted wherever they can be, every
//! command that prints is run, in success and in failure, with the most talkative log there is;
//! and whatever comes out is searched, the pages for machines and what goes to a collector too.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

mod support;

#[path = "secrets/brokers.rs"]
mod brokers;
#[path = "secrets/canary.rs"]
mod canary;
#[path = "secrets/commands.rs"]
mod commands;
#[path = "secrets/mistakes.rs"]
mod mistakes;
#[path = "secrets/watch.rs"]
mod watch;
#[path = "secrets/webhooks.rs"]
mod webhooks;
