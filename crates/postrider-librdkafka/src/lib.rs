//! What [rust-rdkafka](rdkafka) does not pass on of librdkafka.
//!
//! librdkafka sends what waits for `linger.ms` at once while a call of `rd_kafka_flush` is under
//! way. `rdkafka::producer::Producer::flush` makes calls that end at once, so that the thread that
//! sends may see none of them. [`flush`] makes one that lasts.
//!
//! This is the only crate of the workspace with `unsafe` in it.

use std::time::Duration;

use rdkafka::bindings::rd_kafka_flush;
use rdkafka::producer::{Producer, ProducerContext};
use rdkafka::types::RDKafkaRespErr;

/// Makes a producer send what it has without waiting for `linger.ms`, until all of it has its
/// answers or the time is over. True if all of it has. Blocks.
///
/// The answers come as they would without it, where the producer is polled: so somebody else has
/// to do that meanwhile, such as the thread of a `ThreadedProducer`.
pub fn flush<C: ProducerContext>(producer: &impl Producer<C>, time: Duration) -> bool {
    let milliseconds = time.as_millis().try_into().unwrap_or(i32::MAX);
    let client = producer.client().native_ptr();
    // SAFETY: the pointer is that of a live client for as long as the producer is borrowed, and
    // librdkafka's clients may be used by several threads at once. A producer of rust-rdkafka has
    // its answers as events, so that no callback runs within this call, and nothing is freed by it.
    let answer = unsafe { rd_kafka_flush(client, milliseconds) };
    answer == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR
}
