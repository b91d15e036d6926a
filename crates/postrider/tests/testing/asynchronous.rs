//! The same with code that awaits, on no runtime in particular.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use postrider::outbox::Answer;
use postrider::testing::{MemoryDatabase, assert_published, drain_async, published};
use postrider::{Claim, Event, Inbox, InboxTransaction, Outbox, Transaction, WriteError, events};
use uuid::Uuid;

use crate::{OrderPaid, placed};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_claim_that_waits_is_woken_by_the_end_of_the_other() {
    let database = MemoryDatabase::new();
    let event_id = Uuid::now_v7();
    let (mut first, mut second) = (database.begin_async(), database.begin_async());
    let claim = block_on(Inbox::new().once(&mut first, "billing", event_id)).unwrap();
    assert_eq!(claim, Claim::First);

    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    let inbox = Inbox::new();
    let mut waiting = inbox.once(&mut second, "billing", event_id);
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    assert!(!woken.0.load(Ordering::Relaxed));

    block_on(first.commit()).unwrap();
    assert!(woken.0.load(Ordering::Relaxed));
    assert_eq!(block_on(waiting).unwrap(), Claim::Duplicate);
}

#[test]
fn transact_async_commits_or_leaves_nothing() {
    let database = MemoryDatabase::new();
    let paid = OrderPaid { order_id: 42, cents: 999 };
    let done: Result<u8, WriteError> =
        block_on(Outbox::new().transact_async(&database, async |_| Ok((7, events![paid]))));
    assert_eq!(done.unwrap(), 7);
    assert_published!(database, paid, times = 1);

    let known = published(&database).remove(0);
    let failed: Result<(), WriteError> = block_on(
        Outbox::new().transact_async(&database, async |_| Ok(((), events![placed("43"), known]))),
    );
    assert!(matches!(failed, Err(WriteError::Duplicate { .. })), "{failed:?}");
    assert_eq!(published(&database).len(), 1);
}

/// A service that awaits whichever client it has.
async fn pay<Tx>(tx: &mut Tx, event: &Event) -> Result<Claim, WriteError>
where
    for<'t> Tx: InboxTransaction<Written<'t, Claim> = Answer<'t, Claim>>,
    for<'t> Tx: Transaction<Written<'t, Uuid> = Answer<'t, Uuid>> + 'static,
{
    let claim = Inbox::new().once(tx, "payments", event.id()).await?;
    if claim == Claim::First && event.event_type() == "OrderPlaced" {
        Outbox::new().publish(tx, &OrderPaid { order_id: 1, cents: 5 }).await?;
    }
    Ok(claim)
}

#[test]
fn handlers_may_be_awaited() {
    let mut database = MemoryDatabase::new();
    let done: Result<(), WriteError> =
        block_on(Outbox::new().transact_async(&database, async |_| Ok(((), events![placed("1")]))));
    done.unwrap();
    let drained = block_on(drain_async(&mut database, async |database, event| {
        let mut tx = database.begin_async();
        let _: Claim = pay(&mut tx, event).await?;
        tx.commit().await
    }));
    drained.assert_all_delivered();
    assert_eq!(drained.delivered_types(), ["OrderPlaced", "OrderPaid"]);
}
