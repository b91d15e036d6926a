// Orders that publish events, and a consumer, with node-postgres.
//
// The database is the one of DATABASE_URL; `postrider migrate` has made the outbox and the inbox.

import pg from "pg";

const TABLES = `
  CREATE TABLE IF NOT EXISTS orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    state text NOT NULL,
    cents integer NOT NULL
  );
  CREATE TABLE IF NOT EXISTS revenue (source text PRIMARY KEY, cents bigint NOT NULL)`;

interface Order {
  id: string; // a bigint of PostgreSQL is a string here
  cents: number;
}

class PaymentDeclined extends Error {}

/** Commits what `work` did, or rolls it back if it fails. */
async function transaction<T>(
  pool: pg.Pool,
  work: (client: pg.PoolClient) => Promise<T>,
): Promise<T> {
  const client = await pool.connect();
  try {
    await client.query("BEGIN");
    const result = await work(client);
    await client.query("COMMIT");
    return result;
  } catch (error) {
    await client.query("ROLLBACK");
    throw error;
  } finally {
    client.release();
  }
}

/** Writes an event in the transaction of the client. */
async function publish(
  client: pg.PoolClient,
  order: Order,
  eventType: string,
  payload: object,
): Promise<string> {
  const { rows } = await client.query<{ id: string }>(
    "SELECT outbox_publish('Order', $1, $2, $3, headers => $4) AS id",
    [order.id, eventType, payload, { tenant: "acme" }],
  );
  return rows[0].id;
}

function facts(order: Order): object {
  return { order_id: Number(order.id), cents: order.cents };
}

/** The order and its event are committed together. */
async function place(pool: pg.Pool, cents: number): Promise<Order> {
  return transaction(pool, async (client) => {
    const { rows } = await client.query<Order>(
      "INSERT INTO orders (state, cents) VALUES ('placed', $1) RETURNING id, cents",
      [cents],
    );
    await publish(client, rows[0], "OrderPlaced", facts(rows[0]));
    return rows[0];
  });
}

async function pay(pool: pg.Pool, order: Order, declined: boolean): Promise<string> {
  return transaction(pool, async (client) => {
    // Whoever changes an order locks its row first: so its events stay in order.
    await client.query("UPDATE orders SET state = 'paid' WHERE id = $1", [order.id]);
    const eventId = await publish(client, order, "OrderPaid", facts(order));
    if (declined) {
      throw new PaymentDeclined(); // and the transaction is rolled back, with its event
    }
    return eventId;
  });
}

/** Several events in one round trip. Answers how many were written. */
async function placeAll(pool: pg.Pool, prices: number[]): Promise<number> {
  return transaction(pool, async (client) => {
    const { rows: orders } = await client.query<Order>(
      "INSERT INTO orders (state, cents) SELECT 'placed', unnest($1::integer[]) RETURNING id, cents",
      [prices],
    );
    const events = orders.map((order) => ({
      aggregate_type: "Order",
      aggregate_id: order.id,
      event_type: "OrderPlaced",
      payload: facts(order),
    }));
    // node-postgres makes an array of PostgreSQL of an array: so make it JSON here.
    const { rows } = await client.query<{ ids: string[] }>(
      "SELECT outbox_publish_all($1) AS ids",
      [JSON.stringify(events)],
    );
    return rows[0].ids.length;
  });
}

/** Adds what was paid to the revenue, once however often the event arrives. */
async function consume(pool: pg.Pool, eventId: string, cents: number): Promise<boolean> {
  return transaction(pool, async (client) => {
    const { rows } = await client.query<{ first: boolean }>(
      "SELECT inbox_accept('revenue', $1) AS first",
      [eventId],
    );
    if (!rows[0].first) {
      return false;
    }
    await client.query(
      `INSERT INTO revenue VALUES ('orders', $1)
       ON CONFLICT (source) DO UPDATE SET cents = revenue.cents + excluded.cents`,
      [cents],
    );
    return true;
  });
}

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
try {
  await pool.query(TABLES);

  const order = await place(pool, 999);
  console.log("order placed, with its event");
  try {
    await pay(pool, order, true);
  } catch (error) {
    if (!(error instanceof PaymentDeclined)) throw error;
    console.log("payment declined, nothing published");
  }
  const paid = await pay(pool, order, false);
  console.log("order paid, with its event");

  const count = await placeAll(pool, [100, 200, 300]);
  console.log(`${count} orders placed, with one call for their events`);

  for (let delivery = 1; delivery <= 2; delivery++) {
    const first = await consume(pool, paid, 999);
    console.log(first ? "consumed: first, applied" : "consumed: duplicate, nothing done");
  }

  try {
    await transaction(pool, (client) => publish(client, order, "", {}));
  } catch (error) {
    // 23514: a check was violated.
    if (!(error instanceof pg.DatabaseError && error.code === "23514")) throw error;
    console.log(`refused: ${error.message}`);
  }
} finally {
  await pool.end();
}
