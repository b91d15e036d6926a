//! What two errors with the same cause have in common.

/// The error without what differs from event to event: ids, numbers and quoted values.
pub(super) fn of(error: &str) -> String {
    let chars: Vec<char> = error.chars().collect();
    let mut common = String::with_capacity(error.len());
    let mut index = 0;
    while let Some(&c) = chars.get(index) {
        if let Some(end) = quoted(&chars, index) {
            common.extend([c, '…', c]);
            index = end + 1;
        } else if is_word(c) {
            let rest = chars[index..].iter();
            let word: String = rest.take_while(|c| is_word(**c) || **c == '-').collect();
            index += word.chars().count();
            common.push_str(&without_numbers(&word));
        } else {
            common.push(c);
            index += 1;
        }
    }
    common
}

/// Where a quotation that begins here ends. An apostrophe within a word begins none.
fn quoted(chars: &[char], start: usize) -> Option<usize> {
    let quote = *chars.get(start).filter(|c| "\"'`".contains(**c))?;
    let is_within_a_word = start > 0 && is_word(chars[start - 1]);
    if quote == '\'' && is_within_a_word {
        return None;
    }
    let end = chars[start + 1..].iter().position(|c| *c == quote)?;
    Some(start + 1 + end)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn without_numbers(word: &str) -> String {
    if !word.contains(|c: char| c.is_ascii_digit()) {
        return word.to_owned();
    }
    let digits = word.chars().filter(char::is_ascii_hexdigit).count();
    if digits >= 8 && word.chars().all(|c| c.is_ascii_hexdigit() || c == '-') {
        return "<id>".to_owned();
    }
    let mut common = String::new();
    for c in word.chars() {
        match c.is_ascii_digit() {
            true if common.ends_with('#') => {}
            true => common.push('#'),
            false => common.push(c),
        }
    }
    common
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_from_event_to_event_is_left_out() {
        for (error, common) in [
            ("answered 503 Service Unavailable", "answered # Service Unavailable"),
            ("no order 0197f3c2-5d1e-7000-8000-000000000002", "no order <id>"),
            ("the topic \"orders.42\" is missing", "the topic \"…\" is missing"),
            ("can't find 'a' nor `b`", "can't find '…' nor `…`"),
            ("order-42 took 1250ms", "order-# took #ms"),
            ("deadbeef is a word", "deadbeef is a word"),
            ("deadbeef01 is not", "<id> is not"),
            ("10.0.0.7:9092 is \"open", "#.#.#.#:# is \"open"),
            ("", ""),
        ] {
            assert_eq!(of(error), common);
        }
    }
}
