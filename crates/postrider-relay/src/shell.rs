//! Commands that an operator is told to run.

use std::borrow::Cow;

/// A text as one word of a shell.
pub(crate) fn word(text: &str) -> Cow<'_, str> {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "-_./:".contains(char);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.into();
    }
    format!("'{}'", text.replace('\'', r"'\''")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_stays_one_whatever_is_in_it() {
        for (text, expected) in [
            ("orders", "orders"),
            ("a.b-c_d/e:1", "a.b-c_d/e:1"),
            ("", "''"),
            ("two words", "'two words'"),
            ("{s}:ids", "'{s}:ids'"),
            ("it's $HOME", r"'it'\''s $HOME'"),
        ] {
            assert_eq!(word(text), expected);
        }
    }
}
