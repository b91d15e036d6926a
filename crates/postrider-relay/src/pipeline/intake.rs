//! From a record of the source to what the engine takes in.

use std::hash::BuildHasher;
use std::sync::LazyLock;

use postrider::Key;

use super::Options;
use super::engine::Incoming;
use crate::sink::Message;
use crate::source::Record;

/// Works out what to send for a record, or why it can never be sent: before anything of its key
/// is under way, so that a bad event never comes to light in the middle of a call.
pub(super) fn incoming(
    record: Record,
    options: &Options,
    event_bytes_max: usize,
) -> Incoming<Message> {
    let bytes = record.size_bytes();
    let Record { handle, event, attempts, returned, delay } = record;
    let (key, id, message) = match event {
        Ok(event) => {
            // A delayed event has left the order of its key.
            let ordered = event.deliver_after().is_none();
            let key = ordered.then(|| hash(event.key()));
            let id = event.id().as_u64_pair();
            let message = options.encoding.encode(event).map_err(|error| error.message);
            (key, id.0 ^ id.1, message.and_then(|message| fitting(message, event_bytes_max)))
        }
        Err(bad) => (bad.key.as_ref().map(hash), handle.0, Err(bad.reason)),
    };
    Incoming { handle, key, id, bytes, attempts, returned, delay, message }
}

fn fitting(message: Message, event_bytes_max: usize) -> Result<Message, String> {
    let bytes = message.body.len();
    if bytes <= event_bytes_max {
        return Ok(message);
    }
    Err(format!("the message has {bytes} bytes, the sink takes at most {event_bytes_max}"))
}

/// What a lane is named by.
pub(crate) fn hash(key: &Key) -> u64 {
    static SEEDED: LazyLock<foldhash::fast::RandomState> = LazyLock::new(Default::default);
    SEEDED.hash_one(key)
}
