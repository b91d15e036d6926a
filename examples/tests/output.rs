//! What the examples print.

use std::process::Command;

#[track_caller]
fn assert_prints(program: &str, expected: &str) {
    let output = Command::new(program).output().expect("the example can be started");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{stderr}");
}

#[test]
fn consume_once() {
    assert_prints(
        env!("CARGO_BIN_EXE_consume_once"),
        "deposit: applied
the same again: a duplicate, nothing done
withdrawal: failed, deliver it again: CHECK constraint failed: cents >= 0
the same again: applied
balance: 50
",
    );
}

#[test]
fn in_process() {
    assert_prints(
        env!("CARGO_BIN_EXE_in_process"),
        "order 1: OrderPlaced, OrderPaid
order 2: OrderPlaced
orders: delivered 3, parked 0
",
    );
}

#[test]
fn test_your_service() {
    assert_prints(
        env!("CARGO_BIN_EXE_test_your_service"),
        r#"three deliveries: 1 invoice
an unknown customer: 1 delivered, 1 failed
  failed: OrderPlaced of Order/1: {"order_id":1,"customer":"bob","cents":999}
    FOREIGN KEY constraint failed
the customer is known: 1 delivered, 0 failed
no OrderBilled with {"cents":500,"order_id":1} was published
published, in order:
  1. OrderBilled of Invoice/1: {"order_id":1,"cents":999}
       cents: expected 500, found 999
"#,
    );
}

#[test]
fn write_events() {
    assert_prints(
        env!("CARGO_BIN_EXE_write_events"),
        r#"Order/1 OrderPaid v1 topic=- {"order_id":1,"cents":999}
Order/2 OrderPaid v1 topic=- {"order_id":2,"cents":500}
Order/3 OrderPaid v1 topic=- {"order_id":3,"cents":500}
Order/1 OrderShipped v2 topic=shipping {"order_id":1,"carrier":"mule"}
Order/2 PaymentReminder v1 topic=- pay, please
Order/4 OrderPaid v1 topic=- {"order_id":4,"cents":100}
Order/4 OrderShipped v2 topic=shipping {"order_id":4,"carrier":"pigeon"}
"#,
    );
}
