//! What the shop sells and billing books: the events, and the tables of both services.

use postrider::Event;
use serde::{Deserialize, Serialize};

/// The consumer's name in billing's inbox.
pub const CONSUMER: &str = "billing";
/// Where orders go by default.
pub const ORDERS_TOPIC: &str = "outbox.event.Order";
/// Where invoices go by default.
pub const INVOICES_TOPIC: &str = "outbox.event.Invoice";
/// The stream of NATS that takes orders.
pub const ORDERS_STREAM: &str = "orders";
/// The stream of NATS that takes invoices.
pub const INVOICES_STREAM: &str = "invoices";

/// The shop's own: the orders as they stand, and the ledger of all that happened to them, with
/// the event that tells of it.
pub const SHOP_TABLES: &str = "
CREATE TABLE orders (
    id      bigint PRIMARY KEY,
    worker  bigint NOT NULL,
    cents   bigint NOT NULL,
    paid    bigint NOT NULL,
    step    bigint NOT NULL,
    is_open boolean NOT NULL
);
CREATE INDEX orders_worker ON orders (worker, id);
CREATE INDEX orders_open ON orders (worker, id) WHERE is_open;
CREATE TABLE steps (
    event_id uuid PRIMARY KEY,
    order_id bigint NOT NULL REFERENCES orders,
    step     bigint NOT NULL,
    kind     text NOT NULL,
    cents    bigint NOT NULL,
    UNIQUE (order_id, step)
);
";

/// Billing's own: the accounts as they stand, and the book of all that was applied to them.
/// Nothing here keeps an event from being applied twice, or too early: that is what is tested.
pub const BILLING_TABLES: &str = "
CREATE TABLE accounts (
    order_id bigint PRIMARY KEY,
    cents    bigint NOT NULL,
    paid     bigint NOT NULL,
    step     bigint NOT NULL,
    is_open  boolean NOT NULL
);
CREATE TABLE book (
    number      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id    uuid NOT NULL,
    order_id    bigint NOT NULL,
    step        bigint NOT NULL,
    step_before bigint NOT NULL, -- where the account stood
    kind        text NOT NULL,
    cents       bigint NOT NULL
);
";

/// What can happen to an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Always the first.
    Placed,
    /// A part of its price.
    Paid,
    /// All that was paid, back. It is the last.
    Refunded,
    /// It is the last.
    Shipped,
}

impl Kind {
    /// The name in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Placed => "placed",
            Self::Paid => "paid",
            Self::Refunded => "refunded",
            Self::Shipped => "shipped",
        }
    }

    /// What it changes of the money that was paid.
    pub fn paid(self, cents: i64) -> i64 {
        match self {
            Self::Paid => cents,
            Self::Refunded => -cents,
            Self::Placed | Self::Shipped => 0,
        }
    }

    /// Whether nothing comes after it.
    pub fn is_last(self) -> bool {
        matches!(self, Self::Refunded | Self::Shipped)
    }
}

/// One step of an order.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The order.
    pub order: i64,
    /// Which one of the order it is, from 1.
    pub step: i64,
    /// What happened.
    pub kind: Kind,
    /// The price if it was placed, and otherwise how much was paid or given back.
    pub cents: i64,
}

macro_rules! step {
    ($($(#[$doc:meta])* $name:ident is $kind:ident;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Deserialize, Serialize, Event)]
            #[event(aggregate = "Order", id = order)]
            pub struct $name {
                /// The order.
                pub order: i64,
                /// Which step of it this is.
                pub step: i64,
                /// How much it is about.
                pub cents: i64,
            }

            impl From<$name> for Step {
                fn from($name { order, step, cents }: $name) -> Self {
                    Self { order, step, kind: Kind::$kind, cents }
                }
            }
        )*

        impl postrider::ToEvent for Step {
            fn to_event(&self) -> Result<Event, postrider::InvalidEvent> {
                let Self { order, step, kind, cents } = *self;
                match kind {
                    $(Kind::$kind => $name { order, step, cents }.to_event(),)*
                }
            }
        }
    };
}

step! {
    /// An order was placed.
    OrderPlaced is Placed;
    /// A part of an order was paid.
    OrderPaid is Paid;
    /// An order was given up, and what was paid given back.
    OrderRefunded is Refunded;
    /// An order is complete.
    OrderShipped is Shipped;
}

/// Billing is done with an order.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, Event)]
#[event(aggregate = "Invoice", id = order)]
pub struct InvoiceClosed {
    /// The order.
    pub order: i64,
    /// What was paid for it in the end.
    pub cents: i64,
}
