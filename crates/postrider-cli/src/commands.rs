//! One file per command; each has its arguments and what it does.

pub(crate) mod audit;
#[cfg(feature = "full")]
pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod completions;
#[cfg(feature = "demo")]
pub(crate) mod demo;
pub(crate) mod dlq;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod init;
pub(crate) mod keys;
pub(crate) mod man;
pub(crate) mod migrate;
pub(crate) mod pause;
pub(crate) mod prune;
pub(crate) mod reconcile;
pub(crate) mod relay;
pub(crate) mod replay;
pub(crate) mod show;
pub(crate) mod slot;
pub(crate) mod status;
pub(crate) mod tail;
pub(crate) mod verify;
