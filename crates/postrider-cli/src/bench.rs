//! `postrider bench`: measures a user's own database and broker.
//!
//! ```text
//!   writing      sessions ──transactions──▶ the database           without and with an event
//!   reading      the database ──▶ COPY, or a relay ──▶ nowhere     what it gives
//!   publishing   memory ──▶ a relay ──▶ the sink                   what the sink takes
//!                the database ──▶ a relay ──▶ the sink             both together
//!   latency      a steady load ──▶ the same                        from commit to durable
//! ```
//!
//! Nothing that is in use is touched: all of it happens in [scratch places](places) that are made
//! for it and removed at the end, however it ends. Rows and time have hard [bounds](plan). What a
//! figure is worth stands beside it: it is told as a part of what was measured without the relay
//! in the same run.

pub(crate) mod cleaning;
pub(crate) mod draining;
pub(crate) mod events;
pub(crate) mod findings;
pub(crate) mod latency;
pub(crate) mod measuring;
pub(crate) mod places;
pub(crate) mod plan;
pub(crate) mod target;
pub(crate) mod writing;
