//! The ids of what was read and is not settled, for a sink that wants to hear what is.

use std::collections::HashMap;

use uuid::Uuid;

use crate::source::{Handle, Record, Settlement, Verdict};

/// No more than the window.
#[derive(Debug, Default)]
pub(super) struct Unsettled {
    ids: HashMap<Handle, Uuid>,
}

impl Unsettled {
    pub(super) fn read(&mut self, records: &[Record]) {
        let id = |record: &Record| Some((record.handle, record.event.as_ref().ok()?.id()));
        self.ids.extend(records.iter().filter_map(id));
    }

    /// The events that were delivered, and those that were set aside.
    pub(super) fn settled(&mut self, settlements: &[Settlement]) -> (Vec<Uuid>, Vec<Uuid>) {
        let (mut delivered, mut set_aside) = (Vec::new(), Vec::new());
        for Settlement { handle, verdict } in settlements {
            match verdict {
                Verdict::Delivered => delivered.extend(self.ids.remove(handle)),
                Verdict::Parked { .. } | Verdict::Deferred { .. } | Verdict::Queued => {
                    set_aside.extend(self.ids.remove(handle));
                }
                Verdict::Released => drop(self.ids.remove(handle)),
                Verdict::Attempting { .. } => {}
            }
        }
        (delivered, set_aside)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::pipeline::leased::event;

    #[test]
    fn a_sink_hears_what_was_delivered_and_what_was_set_aside() {
        let events: Vec<_> = ["1", "2", "3", "4"].map(|name| Arc::new(event(name))).into();
        let record = |(number, event): (u64, &Arc<postrider::Event>)| Record {
            handle: Handle(number),
            event: Ok(event.clone()),
            attempts: 0,
            returned: false,
            delay: None,
        };
        let mut unsettled = Unsettled::default();
        unsettled.read(&(0..).zip(&events).map(record).collect::<Vec<_>>());
        let deferred = Verdict::Deferred { delay: Duration::ZERO, failure: None, blocks: true };
        let attempting = Verdict::Attempting { attempts: 1, blocks: true };
        let verdicts = [Verdict::Delivered, deferred, Verdict::Released, attempting];
        let settlements: Vec<_> = (0..)
            .zip(verdicts)
            .map(|(number, verdict)| Settlement { handle: Handle(number), verdict })
            .collect();
        let told = unsettled.settled(&settlements);
        assert_eq!(told, (vec![events[0].id()], vec![events[1].id()]));
        // The one that was tried is still under way.
        let last = Settlement { handle: Handle(3), verdict: Verdict::Delivered };
        assert_eq!(unsettled.settled(&[last]), (vec![events[3].id()], vec![]));
        assert!(unsettled.ids.is_empty());
    }
}
