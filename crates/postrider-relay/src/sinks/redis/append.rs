//! The one command of a call: a script that appends its messages to their streams.
//!
//! # Design
//!
//! Redis runs a script from its beginning to its end with nothing in between, and writes its
//! effects to replicas and to its file as one transaction. So an entry is in its stream and its
//! event's id is remembered, or neither; what comes twice is recognised; and after a message that
//! fails, none of the call follows it. The messages of a call may go to several streams: events of
//! one key stay in order even then.
//!
//! - **What is remembered.** Two sets of ids beside each stream, a newer and an older one. When
//!   the newer one is full, it takes the place of the older one. That costs less than half of what
//!   a sorted set does, and it is bounded: an id is known for at least as long as one set takes to
//!   fill, unless nothing is written for a while and the sets expire.
//! - **What is sent.** Names of fields are the same for most messages, so each list of names (a
//!   *shape*) is sent once and a message names it by its number. Most of the time of a script goes
//!   into its arguments.
//! - **A transaction in the file** is read again under the rights of the user `default`, by
//!   Redis from 7.0 up to 8.4 and by Valkey, and dropped if they do not suffice
//!   (<https://github.com/redis/redis/issues/14541>). A check looks for that.
//! - **What may fail comes first**, before anything is appended: making room among the ids, adding
//!   one that no event has, trimming. A user without the right to one of these commands would
//!   otherwise leave entries whose ids nobody remembers, and each retry would append them again.
//!   From Redis 7 on, a check finds such a user without changing anything (`redis.acl_check_cmd`).

use std::borrow::Cow;

use redis::Cmd;

use crate::sink::Message;
use crate::sinks::header_names::{CONTENT_TYPE, CloudEventsPrefix, attributes, headers};

/// The field that holds the body.
pub(super) const PAYLOAD: &str = "payload";
const SCRIPT: &str = include_str!("append.lua");
/// The field that holds the key.
const KEY: &str = "postrider-key";
/// Room for so many fields of a message.
const FIELDS_GUESS: usize = 10;
/// How many shapes are looked at before another one is made.
const SHAPES_SEARCHED: usize = 16;

/// What is the same for all calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Appending {
    /// A stream that is not there is made.
    pub(super) creates: bool,
    /// How many ids of a stream are remembered at least; with zero it is not done by a script.
    pub(super) ids_max: usize,
    /// For how long, if nothing comes.
    pub(super) ids_seconds: u64,
    pub(super) trim: Trim,
}

/// Which entries are taken out of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trim {
    Nothing,
    /// All but about so many.
    Maxlen(usize),
    /// About those that are older than so many milliseconds.
    OlderThan(u128),
}

/// The fields that an entry has, and the stream that it goes to.
struct Shape<'m> {
    stream: usize,
    names: Vec<&'m str>,
}

impl Appending {
    /// The command for some messages. Without messages it changes nothing, and looks whether the
    /// streams may be used.
    pub(super) fn command(&self, messages: &[Message], streams: &[&str]) -> Cmd {
        let mut streams = streams.to_vec();
        let mut shapes: Vec<Shape<'_>> = Vec::new();
        let mut shape_of = Vec::with_capacity(messages.len());
        let mut fields = Vec::with_capacity(messages.len() * FIELDS_GUESS);
        for message in messages {
            let stream = position_of(&mut streams, &message.topic);
            let first = fields.len();
            fields.extend(texts(message));
            shape_of.push(shape_among(&mut shapes, stream, &fields[first..]));
        }

        let mut command = Cmd::new();
        command.arg("EVAL").arg(SCRIPT);
        self.write_settings(&mut command, &streams, shapes.len(), messages.len());
        for Shape { stream, names } in &shapes {
            command.arg(stream + 1).arg(names.len() + 1);
            for name in names.iter().chain([&PAYLOAD]) {
                command.arg(*name);
            }
        }
        for stream in 0..streams.len() {
            let is_its_own = |(_, shape): &(_, &usize)| shapes[**shape].stream == stream;
            let own = || messages.iter().zip(&shape_of).filter(is_its_own);
            command.arg(own().count());
            for (message, _) in own() {
                command.arg(&message.deduplication_id.as_bytes()[..]);
            }
        }
        let mut values = fields.iter().map(|(_, value)| value);
        for (message, shape) in messages.iter().zip(shape_of) {
            command.arg(shape + 1);
            for value in values.by_ref().take(shapes[shape].names.len()) {
                command.arg(value.as_ref());
            }
            command.arg(&message.body[..]);
        }
        command
    }

    fn write_settings(&self, command: &mut Cmd, streams: &[&str], shapes: usize, messages: usize) {
        command.arg(streams.len() * 3);
        for stream in streams {
            let [newer, older] = ids_keys(stream);
            command.arg(stream).arg(newer).arg(older);
        }
        command.arg(self.ids_max).arg(self.ids_seconds);
        command.arg(if self.creates { "" } else { "NOMKSTREAM" });
        match self.trim {
            Trim::Nothing => command.arg("").arg(0),
            Trim::Maxlen(count) => command.arg("MAXLEN").arg(count),
            Trim::OlderThan(milliseconds) => command.arg("MINID").arg(milliseconds.to_string()),
        };
        command.arg(shapes).arg(messages);
    }
}

/// The keys of the ids that a stream remembers: the newer ones and the older ones. They are in
/// the hash slot of the stream.
pub(super) fn ids_keys(stream: &str) -> [String; 2] {
    let tag = stream.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let has_tag = tag.is_some_and(|(tag, _)| !tag.is_empty());
    let slot = if has_tag { stream.to_owned() } else { format!("{{{stream}}}") };
    ["ids", "ids-older"].map(|name| format!("{slot}:postrider-{name}"))
}

/// Whether a key is that of ids: one that was taken for a stream would forget them.
pub(super) fn is_of_ids(key: &str) -> bool {
    [":postrider-ids", ":postrider-ids-older"].iter().any(|end| key.ends_with(end))
}

/// All fields of an entry but the last one, which is the body.
pub(super) fn texts<'m>(message: &'m Message) -> impl Iterator<Item = (&'m str, Cow<'m, str>)> {
    let own = [(KEY, message.key.as_str()), (CONTENT_TYPE, message.content_type.as_str())];
    let free = headers(message, CloudEventsPrefix::Hyphen)
        .filter(|(name, _)| !name.eq_ignore_ascii_case(PAYLOAD));
    let texts = own.into_iter().chain(free).map(|(name, value)| (name, Cow::Borrowed(value)));
    let of_format = attributes(message, CloudEventsPrefix::Hyphen);
    let of_format = of_format.map(|(name, value)| -> (&'m str, _) { (name, value) });
    of_format.chain(texts)
}

/// Which of the latest shapes an entry has; a new one if it has none of them.
fn shape_among<'m>(
    shapes: &mut Vec<Shape<'m>>,
    stream: usize,
    fields: &[(&'m str, Cow<'m, str>)],
) -> usize {
    let is_same = |shape: &Shape<'_>| {
        shape.stream == stream
            && shape.names.len() == fields.len()
            && shape.names.iter().zip(fields).all(|(name, (other, _))| name == other)
    };
    let oldest = shapes.len().saturating_sub(SHAPES_SEARCHED);
    if let Some(found) = shapes[oldest..].iter().position(is_same) {
        return oldest + found;
    }
    shapes.push(Shape { stream, names: fields.iter().map(|(name, _)| *name).collect() });
    shapes.len() - 1
}

/// Where it stands in a list, to which it is added if it is not there.
fn position_of<'m>(streams: &mut Vec<&'m str>, stream: &'m str) -> usize {
    streams.iter().rposition(|known| *known == stream).unwrap_or_else(|| {
        streams.push(stream);
        streams.len() - 1
    })
}

#[cfg(test)]
mod tests;
