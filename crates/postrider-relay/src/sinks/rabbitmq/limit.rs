//! How large a message can be, which a server says only when one is too large.

use lapin::Connection;

use super::connecting::Plug;
use super::lane::Lane;

/// What a server has said, and the connection over which it has. It holds for as long as that one
/// lasts: a server that was started anew may have another limit, and may be another server.
pub(super) struct Limit {
    pub(super) event_bytes_max: usize,
    connection: Connection,
    _plug: Plug,
}

impl Limit {
    /// What was said on a lane, whose channel was closed with it.
    pub(super) fn new(event_bytes_max: usize, lane: Lane) -> Self {
        let (connection, plug) = lane.into_connection();
        Self { event_bytes_max, connection, _plug: plug }
    }

    pub(super) fn holds(&self) -> bool {
        self.connection.status().connected()
    }
}
