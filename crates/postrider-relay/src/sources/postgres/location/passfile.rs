//! A file of passwords, as `psql` reads it: lines of `host:port:database:user:password`.

use std::path::Path;
use std::{fs, io};

use crate::secret::Secret;

/// What stood in the file when it was read.
pub(super) struct PasswordFile {
    text: String,
}

impl PasswordFile {
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        let text = fs::read_to_string(path)?;
        Ok(Self { text })
    }

    /// The password in the first line that fits.
    pub(super) fn find(&self, host: &str, port: u16, database: &str, user: &str) -> Option<Secret> {
        let port = port.to_string();
        let wanted = [host, port.as_str(), database, user];
        let lines = self.text.lines().filter(|line| !line.starts_with('#'));
        lines.map(fields).find_map(|mut fields| {
            let fits = wanted.iter().all(|wanted| {
                let field = fields.next();
                field.is_some_and(|(field, plain)| field == *wanted || (plain && field == "*"))
            });
            // A password may hold a colon without a backslash before it.
            let (password, _) = fields.next().filter(|_| fits)?;
            let rest = fields.map(|(field, _)| format!(":{field}"));
            Some(Secret::new(password + &rest.collect::<String>()))
        })
    }
}

/// The fields of a line, each with whether it has no backslash in it. A colon or a backslash
/// with a backslash before it belongs to the field.
fn fields(line: &str) -> impl Iterator<Item = (String, bool)> {
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        let mut field = String::new();
        let mut plain = true;
        let mut chars = rest.take()?.char_indices();
        let line = chars.as_str();
        while let Some((at, char)) = chars.next() {
            match char {
                ':' => {
                    rest = Some(&line[at + 1..]);
                    break;
                }
                '\\' => {
                    plain = false;
                    field.extend(chars.next().map(|(_, escaped)| escaped));
                }
                _ => field.push(char),
            }
        }
        Some((field, plain))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_fits_has_the_password() {
        let file = PasswordFile {
            text: "# a comment\n\
                   other:5432:app:postrider:wrong\n\
                   db:5432:app:postrider:pass\\:word:with\\\\colons\r\n\
                   db:*:*:postrider:any\n\
                   \\*:5432:app:star:no\n\
                   too:few:fields\n\
                   *:*:*:*:last"
                .to_owned(),
        };
        let cases = [
            (("db", 5432, "app", "postrider"), "pass:word:with\\colons"),
            (("db", 5433, "other", "postrider"), "any"),
            (("db", 5432, "app", "star"), "last"),
            (("::1", 5432, "app", "x"), "last"),
        ];
        for ((host, port, database, user), password) in cases {
            let found = file.find(host, port, database, user).unwrap();
            assert_eq!(found.expose(), password, "{host} {port} {database} {user}");
        }
        let none = PasswordFile { text: "db:5432:app:postrider:x".to_owned() };
        assert!(none.find("db", 5432, "app", "somebody").is_none());
    }
}
