"""Orders that publish events, and a consumer, with SQLAlchemy.

The database is the one of DATABASE_URL; `postrider migrate` has made the outbox and the inbox.
"""

import os
from uuid import UUID

from sqlalchemy import bindparam, create_engine, func, literal, make_url, select, text
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

PUBLISH = text(
    "SELECT outbox_publish('Order', :order, :event_type, :payload, headers => :headers)"
).bindparams(bindparam("payload", type_=JSONB), bindparam("headers", type_=JSONB))


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str]
    cents: Mapped[int]

    def facts(self) -> dict[str, int]:
        return {"order_id": self.id, "cents": self.cents}


class Revenue(Base):
    """What the consumer keeps."""

    __tablename__ = "revenue"

    source: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int]


class PaymentDeclined(Exception):
    pass


def publish(session: Session, order: Order, event_type: str, payload: dict) -> UUID:
    """Writes an event in the session's transaction."""
    parameters = {
        "order": str(order.id),
        "event_type": event_type,
        "payload": payload,
        "headers": {"tenant": "acme"},
    }
    return session.scalar(PUBLISH, parameters)


def place(sessions: sessionmaker[Session], cents: int) -> int:
    """The order and its event are committed together."""
    with sessions.begin() as session:
        order = Order(state="placed", cents=cents)
        session.add(order)
        session.flush()  # gives the order its id
        publish(session, order, "OrderPlaced", order.facts())
        return order.id


def pay(sessions: sessionmaker[Session], order_id: int, *, declined: bool = False) -> UUID:
    with sessions.begin() as session:
        # Whoever changes an order locks its row first: so its events stay in order.
        order = session.get_one(Order, order_id, with_for_update=True)
        order.state = "paid"
        event_id = publish(session, order, "OrderPaid", order.facts())
        if declined:
            raise PaymentDeclined  # and the transaction is rolled back, with its event
        return event_id


def place_all(sessions: sessionmaker[Session], prices: list[int]) -> int:
    """Several events in one round trip. Answers how many were written."""
    with sessions.begin() as session:
        orders = [Order(state="placed", cents=cents) for cents in prices]
        session.add_all(orders)
        session.flush()
        events = [
            {
                "aggregate_type": "Order",
                "aggregate_id": str(order.id),
                "event_type": "OrderPlaced",
                "payload": order.facts(),
            }
            for order in orders
        ]
        ids = session.scalar(select(func.outbox_publish_all(literal(events, JSONB))))
        return len(ids)


def consume(sessions: sessionmaker[Session], event_id: UUID, cents: int) -> bool:
    """Adds what was paid to the revenue, once however often the event arrives."""
    with sessions.begin() as session:
        if not session.scalar(select(func.inbox_accept("revenue", event_id))):
            return False
        added = insert(Revenue).values(source="orders", cents=cents)
        session.execute(
            added.on_conflict_do_update(
                index_elements=[Revenue.source],
                set_={"cents": Revenue.cents + added.excluded.cents},
            )
        )
        return True


def main() -> None:
    url = make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+psycopg")
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    sessions = sessionmaker(engine)

    order = place(sessions, 999)
    print("order placed, with its event")
    try:
        pay(sessions, order, declined=True)
    except PaymentDeclined:
        print("payment declined, nothing published")
    paid = pay(sessions, order)
    print("order paid, with its event")

    print(f"{place_all(sessions, [100, 200, 300])} orders placed, with one call for their events")

    for _ in range(2):
        first = consume(sessions, paid, 999)
        print("consumed: first, applied" if first else "consumed: duplicate, nothing done")

    try:
        with sessions.begin() as session:
            publish(session, session.get_one(Order, order), "", {})
    except IntegrityError as error:
        print("refused:", error.orig.diag.message_primary)


if __name__ == "__main__":
    main()
