//! Reads numbers and texts from a message. Nothing is copied.

use bytes::{Buf as _, Bytes};

/// A message ends too early, or does not end where it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

impl From<bytes::TryGetError> for Malformed {
    fn from(_: bytes::TryGetError) -> Self {
        Self
    }
}

/// What is left of a message.
pub(crate) struct Reader(Bytes);

impl Reader {
    pub(crate) fn new(message: Bytes) -> Self {
        Self(message)
    }

    pub(crate) fn left(&self) -> &Bytes {
        &self.0
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.0.try_get_u8()?)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(self.0.try_get_u16()?)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(self.0.try_get_u32()?)
    }

    pub(crate) fn i32(&mut self) -> Result<i32, Malformed> {
        Ok(self.0.try_get_i32()?)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(self.0.try_get_u64()?)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, Malformed> {
        Ok(self.0.try_get_i64()?)
    }

    /// So many bytes.
    pub(crate) fn bytes(&mut self, count: usize) -> Result<Bytes, Malformed> {
        if count > self.0.len() {
            return Err(Malformed);
        }
        Ok(self.0.split_to(count))
    }

    /// Everything up to the next zero, which is passed over.
    pub(crate) fn until_zero(&mut self) -> Result<Bytes, Malformed> {
        let length = self.0.iter().position(|byte| *byte == 0).ok_or(Malformed)?;
        let bytes = self.0.split_to(length);
        self.0.advance(1);
        Ok(bytes)
    }

    /// Nothing must be left.
    pub(crate) fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}
