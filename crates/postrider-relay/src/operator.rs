//! Everything that an operator does with an outbox, for whoever needs more than one part of it.

use crate::admin::Admin;
use crate::events::Events;
use crate::keys::Keys;
use crate::pauses::Pauses;
use crate::reconcile::Reconcile;

/// All parts together.
pub trait Operator: Admin + Events + Keys + Pauses + Reconcile {}

impl<T: Admin + Events + Keys + Pauses + Reconcile> Operator for T {}
