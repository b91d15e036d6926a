use super::*;

/// A message, put together by hand.
#[derive(Default)]
struct Bytewise(Vec<u8>);

impl Bytewise {
    fn kind(kind: u8) -> Self {
        Self(vec![kind])
    }

    fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn text(mut self, text: &str) -> Self {
        self.0.extend(text.bytes());
        self.u8(0)
    }

    fn column(self, kind: u8, content: &[u8]) -> Self {
        let mut column = self.u8(kind).u32(u32::try_from(content.len()).unwrap());
        column.0.extend(content);
        column
    }

    fn bytes(self) -> Bytes {
        self.0.into()
    }
}

/// Decodes it; and no part of it can be decoded, nor can it with a byte too many.
fn decoded(message: Bytewise, in_stream: bool) -> Message {
    let bytes = message.bytes();
    for length in 0..bytes.len() {
        let cut = decode(bytes.slice(..length), in_stream);
        assert_eq!(cut, Err(DecodeError::Length), "{length} of {bytes:?}");
    }
    let longer = Bytes::from([&bytes[..], &[0]].concat());
    assert_eq!(decode(longer, in_stream), Err(DecodeError::Length));
    decode(bytes, in_stream).unwrap()
}

fn text(content: &'static [u8]) -> Value {
    Value::Text(Bytes::from_static(content))
}

fn binary(content: &'static [u8]) -> Value {
    Value::Binary(Bytes::from_static(content))
}

fn values(tuple: &Tuple) -> Vec<Value> {
    assert_eq!(tuple.values().count(), tuple.len());
    tuple.values().collect()
}

#[test]
fn transactions_begin_and_end() {
    let begin = Bytewise::kind(b'B').u64(0x16_0000_0010).u64(77).u32(741);
    assert_eq!(
        decoded(begin, false),
        Message::Begin { final_lsn: Lsn(0x16_0000_0010), commit_time_us: 77, xid: 741 }
    );
    let commit = Bytewise::kind(b'C').u8(0).u64(16).u64(48).u64((-5i64).cast_unsigned());
    assert_eq!(
        decoded(commit, false),
        Message::Commit { commit_lsn: Lsn(16), end_lsn: Lsn(48), commit_time_us: -5 }
    );
    let origin = Bytewise::kind(b'O').u64(9).text("elsewhere");
    assert_eq!(
        decoded(origin, false),
        Message::Origin { lsn: Lsn(9), name: "elsewhere".to_owned() }
    );
}

#[test]
fn tables_and_types_are_described() {
    let relation = |start: Bytewise| {
        let start = start.u32(16_384).text("public").text("outbox").u8(b'd').u16(2);
        let start = start.u8(1).text("id").u32(2950).u32(u32::MAX);
        start.u8(0).text("topic").u32(1043).u32(104)
    };
    let column = |name: &str, type_oid, type_modifier, is_key| {
        let name = name.to_owned();
        Column { name, type_oid, type_modifier, is_key }
    };
    let mut expected = Relation {
        xid: None,
        oid: 16_384,
        schema: "public".to_owned(),
        name: "outbox".to_owned(),
        replica_identity: b'd',
        columns: vec![column("id", 2950, -1, true), column("topic", 1043, 104, false)],
    };
    let message = decoded(relation(Bytewise::kind(b'R')), false);
    assert_eq!(message, Message::Relation(expected.clone()));
    expected.xid = Some(5);
    let message = decoded(relation(Bytewise::kind(b'R').u32(5)), true);
    assert_eq!(message, Message::Relation(expected));

    let own_type = Bytewise::kind(b'Y').u32(5).u32(16_390).text("public").text("mood");
    let (schema, name) = ("public".to_owned(), "mood".to_owned());
    assert_eq!(decoded(own_type, true), Message::Type { xid: Some(5), oid: 16_390, schema, name });
}

#[test]
fn rows_are_inserted_updated_and_deleted() {
    let insert = Bytewise::kind(b'I').u32(16_384).u8(b'N').u16(4);
    let insert = insert.column(b't', b"text").u8(b'n').column(b'b', &[0, 1]).column(b't', b"");
    let Message::Insert { xid: None, relation: 16_384, new } = decoded(insert, false) else {
        panic!("it is an insert");
    };
    assert_eq!(values(&new), [text(b"text"), Value::Null, binary(&[0, 1]), text(b"")]);

    let insert = Bytewise::kind(b'I').u32(5).u32(16_384).u8(b'N').u16(0);
    let Message::Insert { xid: Some(5), relation: 16_384, new } = decoded(insert, true) else {
        panic!("it is an insert of a streamed transaction");
    };
    assert!(new.is_empty());

    let update = Bytewise::kind(b'U').u32(1).u8(b'N').u16(1).u8(b'u');
    let Message::Update { xid: None, relation: 1, old: None, new } = decoded(update, false) else {
        panic!("it is an update of which only the new row is known");
    };
    assert_eq!(values(&new), [Value::Unchanged]);

    for kind in [b'K', b'O'] {
        let update = Bytewise::kind(b'U').u32(1).u8(kind).u16(1).column(b't', b"1");
        let update = update.u8(b'N').u16(1).column(b't', b"2");
        let Message::Update { old: Some(old), new, .. } = decoded(update, false) else {
            panic!("it is an update with an old row");
        };
        assert_eq!(values(&new), [text(b"2")]);
        let delete = Bytewise::kind(b'D').u32(1).u8(kind).u16(1).column(b't', b"1");
        let message = decoded(delete, false);
        assert_eq!(message, Message::Delete { xid: None, relation: 1, old: old.clone() });
        match (kind, old) {
            (b'K', Old::Key(tuple)) | (b'O', Old::Row(tuple)) => {
                assert_eq!(values(&tuple), [text(b"1")]);
            }
            (kind, old) => panic!("{kind} is not {old:?}"),
        }
    }
}

#[test]
fn tables_are_truncated() {
    let truncate = Bytewise::kind(b'T').u32(2).u8(3).u32(7).u32(8);
    let (cascade, restart_identity) = (true, true);
    assert_eq!(
        decoded(truncate, false),
        Message::Truncate { xid: None, relations: vec![7, 8], cascade, restart_identity }
    );
}

#[test]
fn logical_messages_carry_a_prefix_and_bytes() {
    let message = Bytewise::kind(b'M').u8(1).u64(16).text("postrider").u32(3);
    let message = message.u8(1).u8(0).u8(255);
    assert_eq!(
        decoded(message, false),
        Message::Logical {
            xid: None,
            transactional: true,
            lsn: Lsn(16),
            prefix: "postrider".to_owned(),
            content: Bytes::from_static(&[1, 0, 255]),
            length: 3,
        }
    );
    let message = Bytewise::kind(b'M').u32(5).u8(0).u64(16).text("").u32(0);
    let (xid, lsn, prefix, content) = (Some(5), Lsn(16), String::new(), Bytes::new());
    assert_eq!(
        decoded(message, true),
        Message::Logical { xid, transactional: false, lsn, prefix, content, length: 0 }
    );
}

#[test]
fn transactions_come_in_blocks() {
    let start = Bytewise::kind(b'S').u32(5).u8(1);
    assert_eq!(decoded(start, false), Message::StreamStart { xid: 5, first: true });
    assert_eq!(decoded(Bytewise::kind(b'E'), true), Message::StreamStop);
    let commit = Bytewise::kind(b'c').u32(5).u8(0).u64(16).u64(48).u64(77);
    let (commit_lsn, end_lsn, commit_time_us) = (Lsn(16), Lsn(48), 77);
    assert_eq!(
        decoded(commit, false),
        Message::StreamCommit { xid: 5, commit_lsn, end_lsn, commit_time_us }
    );
    let abort = Bytewise::kind(b'A').u32(5).u32(6);
    assert_eq!(decoded(abort, false), Message::StreamAbort { xid: 5, subxid: 6 });
}

#[test]
fn what_is_not_known_is_named() {
    assert_eq!(
        decode(Bytes::from_static(b"b123"), false),
        Err(DecodeError::UnknownMessage(b'b')),
        "a prepared transaction, which was not asked for"
    );
    assert!(DecodeError::UnknownMessage(b'b').to_string().contains("0x62"));
    let insert = |kind: u8, column: u8| {
        decode(Bytewise::kind(b'I').u32(1).u8(kind).u16(1).u8(column).bytes(), false)
    };
    assert_eq!(insert(b'X', b'n'), Err(DecodeError::UnknownTuple(b'X')));
    assert_eq!(insert(b'N', b'z'), Err(DecodeError::UnknownColumn(b'z')));
    let delete = Bytewise::kind(b'D').u32(1).u8(b'N').u16(0).bytes();
    assert_eq!(decode(delete, false), Err(DecodeError::UnknownTuple(b'N')));
    let origin = Bytewise::kind(b'O').u64(9).u8(0xFF).u8(0).bytes();
    assert_eq!(decode(origin, false), Err(DecodeError::Text));
}

#[test]
fn a_count_is_not_believed() {
    let relation = Bytewise::kind(b'R').u32(1).text("").text("").u8(b'd').u16(u16::MAX).u64(0);
    assert_eq!(decode(relation.bytes(), false), Err(DecodeError::Length));
    let truncate = Bytewise::kind(b'T').u32(u32::MAX).u8(0).u32(7);
    assert_eq!(decode(truncate.bytes(), false), Err(DecodeError::Length));
    let message = Bytewise::kind(b'M').u8(0).u64(0).text("").u32(u32::MAX).u8(0);
    assert_eq!(decode(message.bytes(), false), Err(DecodeError::Length));
}

#[test]
fn a_value_is_a_part_of_the_input() {
    let bytes = Bytewise::kind(b'I').u32(1).u8(b'N').u16(1).column(b't', b"here").bytes();
    let input = bytes.as_ptr_range();
    let Message::Insert { new, .. } = decode(bytes, false).unwrap() else { unreachable!() };
    let Some(Value::Text(content)) = new.values().next() else { panic!("there is a text") };
    assert!(input.contains(&content.as_ptr()));
}
