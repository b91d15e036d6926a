//! A client of PostgreSQL's logical replication, for `pgoutput`: slots, the stream of a slot, and
//! the decoder of its messages. For PostgreSQL 14 and newer.
//!
//! [`Connection`] takes the configuration and the TLS of `tokio_postgres`, so that a program
//! connects for replication as it does for everything else. [`Replication`] is the stream: a
//! thread of its own receives and tells the server how far we are, whatever the program does
//! meanwhile. [`pgoutput::decode`] reads the messages. [`connect_sql`] makes a connection for
//! statements that is as careful about the server as that of the replication.
//!
//! What is taken care of has to be confirmed, so that the server does not send it again and can
//! remove its log. Confirm exactly the end of a commit record, in order of commit. While there is
//! nothing that is not taken care of, confirm what a keepalive says, too: otherwise the log grows
//! when only other tables are written.
//!
//! ```no_run
//! use postrider_replication::pgoutput::{Message, decode};
//! use postrider_replication::{Connection, Flow, Frame, Lsn, PgOutput, SlotOptions};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let config = "host=localhost user=app password=secret dbname=shop".parse()?;
//! let mut connection = Connection::connect(&config, tokio_postgres::NoTls).await?;
//! connection.query("CREATE PUBLICATION orders FOR TABLE orders").await?;
//! connection.create_slot("orders", SlotOptions::default()).await?;
//!
//! let output = PgOutput { publications: vec!["orders".to_owned()], ..PgOutput::default() };
//! let stream = connection.start("orders", Lsn::ZERO, &output, Flow::default()).await?;
//! let mut is_open = false;
//! while let Some(batch) = stream.next().await? {
//!     for frame in batch {
//!         match frame {
//!             Frame::XLogData { data, .. } => match decode(data, false)? {
//!                 Message::Begin { .. } => is_open = true,
//!                 Message::Insert { new, .. } => println!("{:?}", new.values().next()),
//!                 Message::Commit { end_lsn, .. } => {
//!                     is_open = false;
//!                     stream.confirm(end_lsn);
//!                 }
//!                 _ => {}
//!             },
//!             Frame::Keepalive { wal_end } if !is_open => stream.confirm(wal_end),
//!             Frame::Keepalive { .. } => {}
//!         }
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod auth;
mod checked;
mod commands;
mod connection;
mod cut;
mod encrypted;
mod error;
mod login;
mod lsn;
pub mod pgoutput;
mod reader;
mod replication;
mod socket;
mod sql;
mod wire;

pub use self::auth::{AuthMethods, AuthPolicy, RefusedAuth};
pub use self::checked::{Checked, RefusedMessage};
pub use self::commands::{Flow, PgOutput, SlotOptions, Snapshot};
pub use self::connection::{Canceller, Connection, CreatedSlot, Row, SystemIdentity};
pub use self::encrypted::EncryptedStream;
pub use self::error::{Error, ServerError};
pub use self::lsn::{InvalidLsn, Lsn};
pub use self::replication::{Batch, Frame, Replication};
pub use self::socket::Socket;
pub use self::sql::{SqlCanceller, SqlConnection, connect_sql};
