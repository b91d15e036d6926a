//! What the slot of a pipeline and the publication of an outbox are called.

use uuid::Uuid;

use crate::sources::postgres::table::Table;

/// The longest name in PostgreSQL, in bytes.
const NAME_BYTES_MAX: usize = 63;

/// Names of a pipeline's slot and of its outbox' publication.
#[derive(Clone, Debug)]
pub(in super::super) struct Names {
    pub(in super::super) slot: String,
    pub(in super::super) publication: String,
    /// Schema and name of the outbox, quoted.
    pub(in super::super) outbox: String,
}

impl Names {
    pub(in super::super) fn new(database: &str, table: &Table, pipeline: &str) -> Self {
        let outbox = table.quoted();
        let of_outbox = format!("{database}:{outbox}");
        Self {
            slot: name(pipeline, &format!("{of_outbox}:{pipeline}")),
            publication: name(outbox, &of_outbox),
            outbox: outbox.to_owned(),
        }
    }
}

/// A name that people recognize, and that nothing else has: slots belong to all databases.
fn name(readable: &str, unique: &str) -> String {
    let hash = Uuid::new_v5(&Uuid::NAMESPACE_OID, format!("postrider:{unique}").as_bytes());
    let hash = &hash.simple().to_string()[..8];
    let length = NAME_BYTES_MAX - "postrider__".len() - hash.len();
    let readable = readable.bytes().filter(|byte| *byte != b'"').take(length);
    let readable: String = readable
        .map(
            |byte| {
                if byte.is_ascii_alphanumeric() { byte.to_ascii_lowercase() as char } else { '_' }
            },
        )
        .collect();
    format!("postrider_{readable}_{hash}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_and_differ() {
        let slot = |pipeline: &str| name(pipeline, &format!("shop:public.outbox:{pipeline}"));
        assert!(slot("orders").starts_with("postrider_orders_"));
        assert_ne!(slot("Orders"), slot("orders"));
        for pipeline in ["", "ö x-y", &"a".repeat(255), "a\"b"] {
            let name = slot(pipeline);
            let is_fit =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
            assert!(name.len() <= NAME_BYTES_MAX && name.bytes().all(is_fit), "{name}");
        }
    }
}
