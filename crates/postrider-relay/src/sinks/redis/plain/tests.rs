use std::sync::Arc;

use postrider::Event;
use redis::Arg;

use super::*;
use crate::formats::Encoding;

fn args(appending: &Appending) -> Vec<String> {
    let event = Event::builder("Order", "42", "OrderPaid").topic("s").build().unwrap();
    let message = Encoding::default().encode(Arc::new(event)).unwrap();
    let now = UNIX_EPOCH + Duration::from_secs(100);
    let text = |arg: Arg<&[u8]>| match arg {
        Arg::Simple(arg) => String::from_utf8_lossy(arg).into_owned(),
        _ => panic!("there is no cursor"),
    };
    appending.plain_command(&message, now).args_iter().map(text).collect()
}

#[test]
fn a_command_is_as_the_options_want_it() {
    let plain = Appending { creates: true, ids_max: 0, ids_seconds: 1, trim: Trim::Nothing };
    assert_eq!(args(&plain)[..4], ["XADD", "s", "*", "postrider-id"]);
    let strict = Appending { creates: false, trim: Trim::Maxlen(9), ..plain };
    assert_eq!(args(&strict)[..7], ["XADD", "s", "NOMKSTREAM", "MAXLEN", "~", "9", "*"]);
    for (age, oldest) in [(30_000, "70000"), (200_000, "0")] {
        let young = Appending { trim: Trim::OlderThan(age), ..plain };
        assert_eq!(args(&young)[2..6], ["MINID", "~", oldest, "*"]);
    }
    assert_eq!(args(&plain).len(), 3 + 2 * 9);
}
