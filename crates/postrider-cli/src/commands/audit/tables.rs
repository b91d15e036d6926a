//! Tables as they are named on the command line.

use postrider_relay::audit::{NamedTable, Operation, Operations};

/// The tables of one `--tables`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tables(pub(super) Vec<NamedTable>);

/// What is written wrongly.
const ADVICE: &str = "write tables such as orders,sales.invoices:insert+delete, and a name with one \
                      of .:,\" in quotes, as in SQL";

/// Reads `orders,sales.invoices:insert+delete`. Names are those of the database, in upper and lower
/// case.
pub(crate) fn parse_tables(text: &str) -> Result<Tables, String> {
    let mut tables = Vec::new();
    let mut rest = text;
    loop {
        let first = name(&mut rest)?;
        let second = eat(&mut rest, '.').then(|| name(&mut rest)).transpose()?;
        let (schema, name) = match second {
            Some(name) => (Some(first), name),
            None => (None, first),
        };
        let needs_event = match eat(&mut rest, ':') {
            true => operations(&mut rest)?,
            false => Operations::ALL,
        };
        tables.push(NamedTable { schema, name, needs_event });
        if rest.is_empty() {
            return Ok(Tables(tables));
        }
        if !eat(&mut rest, ',') {
            return Err(ADVICE.to_owned());
        }
    }
}

fn eat(rest: &mut &str, wanted: char) -> bool {
    let eaten = rest.strip_prefix(wanted);
    *rest = eaten.unwrap_or(rest);
    eaten.is_some()
}

fn name(rest: &mut &str) -> Result<String, String> {
    let mut name = String::new();
    if !eat(rest, '"') {
        let end = rest.find(['.', ':', ',', '"']).unwrap_or(rest.len());
        let (plain, left) = rest.split_at(end);
        *rest = left;
        name.push_str(plain.trim());
    } else {
        loop {
            let (part, left) = rest.split_once('"').ok_or(ADVICE)?;
            *rest = left;
            name.push_str(part);
            // A quote in a name is written twice.
            if !eat(rest, '"') {
                break;
            }
            name.push('"');
        }
    }
    if name.is_empty() { Err(ADVICE.to_owned()) } else { Ok(name) }
}

fn operations(rest: &mut &str) -> Result<Operations, String> {
    let end = rest.find(',').unwrap_or(rest.len());
    let (text, left) = rest.split_at(end);
    *rest = left;
    let operation = |name: &str| {
        Operation::from_name(name.trim()).ok_or_else(|| {
            let known: Vec<&str> = Operation::ALL.into_iter().map(Operation::as_str).collect();
            format!("{name:?} is none of {}", known.join(", "))
        })
    };
    text.split('+').map(operation).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Vec<(Option<String>, String, String)> {
        let tables = parse_tables(text).unwrap_or_else(|error| panic!("{text}: {error}")).0;
        let operations = |it: &NamedTable| {
            let names: Vec<&str> = it.needs_event.iter().map(Operation::as_str).collect();
            if it.needs_event == Operations::ALL { "all".to_owned() } else { names.join("+") }
        };
        let parts = |it: NamedTable| (it.schema.clone(), it.name.clone(), operations(&it));
        tables.into_iter().map(parts).collect()
    }

    #[test]
    fn tables_have_schemas_quotes_and_operations() {
        let table = |schema: Option<&str>, name: &str, operations: &str| {
            (schema.map(str::to_owned), name.to_owned(), operations.to_owned())
        };
        assert_eq!(parsed("orders"), [table(None, "orders", "all")]);
        assert_eq!(
            parsed("Orders, sales.invoices:insert+delete,payments:update"),
            [
                table(None, "Orders", "all"),
                table(Some("sales"), "invoices", "insert+delete"),
                table(None, "payments", "update"),
            ]
        );
        assert_eq!(
            parsed(r#""a.b:c,d".e,x."say ""hi""":truncate"#),
            [table(Some("a.b:c,d"), "e", "all"), table(Some("x"), "say \"hi\"", "truncate")]
        );
    }

    #[test]
    fn mistakes_are_told_with_what_to_write() {
        let wrong = ["", ",", "a,", "a..b", "a.b.c", "\"a", "\"\"", "a\"b\"", ".a", "a.", " "];
        for text in wrong {
            assert_eq!(parse_tables(text).unwrap_err(), ADVICE, "{text:?}");
        }
        for text in ["a:", "a:upsert", "a:insert+", "a:insert:delete"] {
            let error = parse_tables(text).unwrap_err();
            assert!(error.contains("none of insert, update, delete, truncate"), "{text}: {error}");
        }
    }
}
