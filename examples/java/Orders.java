import java.net.URI;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.stream.Collectors;
import org.postgresql.util.PSQLException;

/**
 * Orders that publish events, and a consumer, with JDBC.
 *
 * <p>The database is the one of DATABASE_URL; {@code postrider migrate} has made the outbox and the
 * inbox. A program of your own makes its JSON with a library.
 */
public class Orders {
    private static final String TABLES = """
            CREATE TABLE IF NOT EXISTS orders (
                id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                state text NOT NULL,
                cents integer NOT NULL
            );
            CREATE TABLE IF NOT EXISTS revenue (source text PRIMARY KEY, cents bigint NOT NULL)
            """;

    /** The SQLSTATE of an event that was refused. */
    private static final String CHECK_VIOLATION = "23514";

    record Order(long id, int cents) {
        String facts() {
            return "{\"order_id\":%d,\"cents\":%d}".formatted(id, cents);
        }

        String event(String eventType) {
            return """
                    {"aggregate_type":"Order","aggregate_id":"%d","event_type":"%s","payload":%s}"""
                    .formatted(id, eventType, facts());
        }
    }

    static class PaymentDeclined extends RuntimeException {
    }

    interface Work<T> {
        T run() throws SQLException;
    }

    /** Commits what the work did, or rolls it back if it fails. */
    static <T> T transaction(Connection connection, Work<T> work) throws SQLException {
        connection.setAutoCommit(false);
        try {
            T result = work.run();
            connection.commit();
            return result;
        } catch (SQLException | RuntimeException failure) {
            connection.rollback();
            throw failure;
        } finally {
            connection.setAutoCommit(true);
        }
    }

    /** Writes an event in the transaction of the connection. */
    static UUID publish(Connection connection, Order order, String eventType) throws SQLException {
        String sql = "SELECT outbox_publish('Order', ?, ?, ?, headers => ?::jsonb)";
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            statement.setString(1, Long.toString(order.id()));
            statement.setString(2, eventType);
            statement.setString(3, order.facts());
            statement.setString(4, "{\"tenant\":\"acme\"}");
            try (ResultSet rows = statement.executeQuery()) {
                rows.next();
                return rows.getObject(1, UUID.class);
            }
        }
    }

    /** The order and its event are committed together. */
    static Order place(Connection connection, int cents) throws SQLException {
        return transaction(connection, () -> {
            Order order = insert(connection, List.of(cents)).get(0);
            publish(connection, order, "OrderPlaced");
            return order;
        });
    }

    static UUID pay(Connection connection, Order order, boolean declined) throws SQLException {
        return transaction(connection, () -> {
            // Whoever changes an order locks its row first: so its events stay in order.
            String sql = "UPDATE orders SET state = 'paid' WHERE id = ?";
            try (PreparedStatement statement = connection.prepareStatement(sql)) {
                statement.setLong(1, order.id());
                statement.executeUpdate();
            }
            UUID eventId = publish(connection, order, "OrderPaid");
            if (declined) {
                throw new PaymentDeclined(); // and the transaction is rolled back, with its event
            }
            return eventId;
        });
    }

    /** Several events in one round trip. Answers how many were written. */
    static int placeAll(Connection connection, List<Integer> prices) throws SQLException {
        return transaction(connection, () -> {
            String events = insert(connection, prices).stream()
                    .map(order -> order.event("OrderPlaced"))
                    .collect(Collectors.joining(",", "[", "]"));
            String sql = "SELECT outbox_publish_all(?::jsonb)";
            try (PreparedStatement statement = connection.prepareStatement(sql)) {
                statement.setString(1, events);
                try (ResultSet rows = statement.executeQuery()) {
                    rows.next();
                    return ((UUID[]) rows.getArray(1).getArray()).length;
                }
            }
        });
    }

    static List<Order> insert(Connection connection, List<Integer> prices) throws SQLException {
        String sql = "INSERT INTO orders (state, cents) SELECT 'placed', unnest(?) RETURNING id, cents";
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            statement.setArray(1, connection.createArrayOf("integer", prices.toArray()));
            List<Order> orders = new ArrayList<>();
            try (ResultSet rows = statement.executeQuery()) {
                while (rows.next()) {
                    orders.add(new Order(rows.getLong("id"), rows.getInt("cents")));
                }
            }
            return orders;
        }
    }

    /** Adds what was paid to the revenue, once however often the event arrives. */
    static boolean consume(Connection connection, UUID eventId, int cents) throws SQLException {
        return transaction(connection, () -> {
            String accept = "SELECT inbox_accept('revenue', ?)";
            try (PreparedStatement statement = connection.prepareStatement(accept)) {
                statement.setObject(1, eventId);
                try (ResultSet rows = statement.executeQuery()) {
                    rows.next();
                    if (!rows.getBoolean(1)) {
                        return false;
                    }
                }
            }
            String add = """
                    INSERT INTO revenue VALUES ('orders', ?)
                    ON CONFLICT (source) DO UPDATE SET cents = revenue.cents + excluded.cents""";
            try (PreparedStatement statement = connection.prepareStatement(add)) {
                statement.setInt(1, cents);
                statement.executeUpdate();
            }
            return true;
        });
    }

    /** postgres://user:password@host/database, as the driver takes it. */
    static Connection connect(URI url) throws SQLException {
        String[] user = url.getUserInfo().split(":", 2);
        String database = "jdbc:postgresql://%s:%d%s"
                .formatted(url.getHost(), url.getPort() < 0 ? 5432 : url.getPort(), url.getPath());
        return DriverManager.getConnection(database, user[0], user.length > 1 ? user[1] : null);
    }

    public static void main(String[] arguments) throws SQLException {
        try (Connection connection = connect(URI.create(System.getenv("DATABASE_URL")))) {
            try (Statement statement = connection.createStatement()) {
                statement.execute(TABLES);
            }

            Order order = place(connection, 999);
            System.out.println("order placed, with its event");
            try {
                pay(connection, order, true);
            } catch (PaymentDeclined declined) {
                System.out.println("payment declined, nothing published");
            }
            UUID paid = pay(connection, order, false);
            System.out.println("order paid, with its event");

            int count = placeAll(connection, List.of(100, 200, 300));
            System.out.println(count + " orders placed, with one call for their events");

            for (int delivery = 1; delivery <= 2; delivery++) {
                boolean first = consume(connection, paid, order.cents());
                System.out.println(
                        first ? "consumed: first, applied" : "consumed: duplicate, nothing done");
            }

            try {
                transaction(connection, () -> publish(connection, order, ""));
            } catch (PSQLException refused) {
                if (!CHECK_VIOLATION.equals(refused.getSQLState())) {
                    throw refused;
                }
                System.out.println("refused: " + refused.getServerErrorMessage().getMessage());
            }
        }
    }
}
