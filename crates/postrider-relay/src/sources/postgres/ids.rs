//! Ids of rows as a parameter of a statement, in the type that the table has for them.

use bytes::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use uuid::Uuid;

use super::connection::Param;

/// Ids, in the type of a column.
#[derive(Debug)]
pub(super) enum Ids {
    Integers(Vec<Option<i64>>),
    Texts(Vec<Option<String>>),
    Uuids(Vec<Option<Id>>),
}

/// A UUID as PostgreSQL sends it.
#[derive(Debug)]
pub(super) struct Id(Uuid);

impl ToSql for Id {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::UUID
    }

    to_sql_checked!();
}

impl Ids {
    /// Ids that were read from a column, given the type of an array of them.
    pub(super) fn new(ids: &[Option<String>], ty: &Type) -> Self {
        let ids = ids.iter().map(Option::as_deref);
        match *ty {
            Type::INT8_ARRAY => {
                Self::Integers(ids.map(|id| id.and_then(|id| id.parse().ok())).collect())
            }
            Type::UUID_ARRAY => {
                let uuid = |id: &str| Uuid::parse_str(id).ok().map(Id);
                Self::Uuids(ids.map(|id| id.and_then(uuid)).collect())
            }
            _ => Self::Texts(ids.map(|id| id.map(str::to_owned)).collect()),
        }
    }

    pub(super) fn param(&self) -> Param<'_> {
        match self {
            Self::Integers(ids) => (ids, Type::INT8_ARRAY),
            Self::Texts(ids) => (ids, Type::TEXT_ARRAY),
            Self::Uuids(ids) => (ids, Type::UUID_ARRAY),
        }
    }
}
