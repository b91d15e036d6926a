// Orders that publish events, and a consumer, with pgx.
//
// The database is the one of DATABASE_URL; `postrider migrate` has made the outbox and the inbox.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

const tables = `
CREATE TABLE IF NOT EXISTS orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    state text NOT NULL,
    cents integer NOT NULL
);
CREATE TABLE IF NOT EXISTS revenue (source text PRIMARY KEY, cents bigint NOT NULL)`

type order struct {
	ID    int64 `json:"order_id" db:"id"`
	Cents int   `json:"cents"`
}

// event is what outbox_publish_all takes an array of.
type event struct {
	AggregateType string `json:"aggregate_type"`
	AggregateID   string `json:"aggregate_id"`
	EventType     string `json:"event_type"`
	Payload       any    `json:"payload"`
}

// checkViolation is the SQLSTATE of an event that was refused.
const checkViolation = "23514"

var errDeclined = errors.New("payment declined")

// publish writes an event in the transaction. The cast lets pgx send any value as JSON.
func publish(ctx context.Context, tx pgx.Tx, o order, eventType string) (id pgtype.UUID, err error) {
	err = tx.QueryRow(ctx,
		"SELECT outbox_publish('Order', $1, $2, $3::jsonb, headers => $4)",
		strconv.FormatInt(o.ID, 10), eventType, o, map[string]string{"tenant": "acme"},
	).Scan(&id)
	return id, err
}

// place commits the order and its event together.
func place(ctx context.Context, conn *pgx.Conn, cents int) (o order, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		o.Cents = cents
		err := tx.QueryRow(ctx,
			"INSERT INTO orders (state, cents) VALUES ('placed', $1) RETURNING id", cents,
		).Scan(&o.ID)
		if err != nil {
			return err
		}
		_, err = publish(ctx, tx, o, "OrderPlaced")
		return err
	})
	return o, err
}

func pay(ctx context.Context, conn *pgx.Conn, o order, declined bool) (id pgtype.UUID, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		// Whoever changes an order locks its row first: so its events stay in order.
		_, err := tx.Exec(ctx, "UPDATE orders SET state = 'paid' WHERE id = $1", o.ID)
		if err != nil {
			return err
		}
		id, err = publish(ctx, tx, o, "OrderPaid")
		if err != nil {
			return err
		}
		if declined {
			return errDeclined // and the transaction is rolled back, with its event
		}
		return nil
	})
	return id, err
}

// placeAll writes several events in one round trip, and answers how many.
func placeAll(ctx context.Context, conn *pgx.Conn, prices []int) (count int, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx,
			"INSERT INTO orders (state, cents) SELECT 'placed', unnest($1::integer[]) RETURNING id, cents",
			prices)
		if err != nil {
			return err
		}
		orders, err := pgx.CollectRows(rows, pgx.RowToStructByName[order])
		if err != nil {
			return err
		}
		events := make([]event, len(orders))
		for i, o := range orders {
			events[i] = event{"Order", strconv.FormatInt(o.ID, 10), "OrderPlaced", o}
		}
		return tx.QueryRow(ctx, "SELECT cardinality(outbox_publish_all($1))", events).Scan(&count)
	})
	return count, err
}

// consume adds what was paid to the revenue, once however often the event arrives.
func consume(ctx context.Context, conn *pgx.Conn, eventID pgtype.UUID, cents int) (first bool, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, "SELECT inbox_accept('revenue', $1)", eventID).Scan(&first)
		if err != nil || !first {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO revenue VALUES ('orders', $1)
			ON CONFLICT (source) DO UPDATE SET cents = revenue.cents + excluded.cents`, cents)
		return err
	})
	return first, err
}

func run(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, tables); err != nil {
		return err
	}

	o, err := place(ctx, conn, 999)
	if err != nil {
		return err
	}
	fmt.Println("order placed, with its event")
	if _, err := pay(ctx, conn, o, true); !errors.Is(err, errDeclined) {
		return fmt.Errorf("the payment was not declined: %w", err)
	}
	fmt.Println("payment declined, nothing published")
	paid, err := pay(ctx, conn, o, false)
	if err != nil {
		return err
	}
	fmt.Println("order paid, with its event")

	count, err := placeAll(ctx, conn, []int{100, 200, 300})
	if err != nil {
		return err
	}
	fmt.Printf("%d orders placed, with one call for their events\n", count)

	for range 2 {
		first, err := consume(ctx, conn, paid, o.Cents)
		if err != nil {
			return err
		}
		if first {
			fmt.Println("consumed: first, applied")
		} else {
			fmt.Println("consumed: duplicate, nothing done")
		}
	}

	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := publish(ctx, tx, o, "")
		return err
	})
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || refused.Code != checkViolation {
		return fmt.Errorf("the event was not refused: %w", err)
	}
	fmt.Println("refused:", refused.Message)
	return nil
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
