//! `postrider dlq list --by error`: dead letters put together by what went wrong.

use std::collections::BTreeMap;
use std::time::SystemTime;

use postrider_relay::admin::{Admin, DeadLetter, Selection};
use serde::Serialize;

use super::fingerprint;
use super::list::short;
use crate::error::CliError;
use crate::output::{Output, plain, table};
use crate::time::rfc3339;

/// How many dead letters are read at a time.
const PAGE: usize = 1_000;
/// Most groups that are told apart; what else there is counts as one more.
const GROUPS_MAX: usize = 10_000;
/// Longest error in a row of the table, in characters.
const ERROR_CHARS_MAX: usize = 100;
/// What stands for the error of a dead letter for which there was no group.
const OTHERS: &str = "(others)";

/// Dead letters with the same cause.
struct Group {
    count: u64,
    first: SystemTime,
    last: SystemTime,
    /// One of them, the first that was found.
    example: String,
}

/// Kind and fingerprint of an error.
type Cause = (String, String);

#[derive(Serialize)]
struct GroupsObject<'g> {
    groups: Vec<GroupObject<'g>>,
    /// How many there are, with those that are not shown.
    total: usize,
}

#[derive(Serialize)]
struct GroupObject<'g> {
    kind: &'g str,
    error: &'g str,
    count: u64,
    first_parked_at: String,
    last_parked_at: String,
    example_event_id: &'g str,
}

/// Lists the groups, the largest first.
pub(super) async fn list(
    admin: &dyn Admin,
    selection: &Selection,
    limit: usize,
    flags: &str,
    output: Output,
) -> Result<(), CliError> {
    let groups = find(admin, selection).await?;
    let total = groups.len();
    let mut groups: Vec<(Cause, Group)> = groups.into_iter().collect();
    groups.sort_by_key(|(_, group)| std::cmp::Reverse(group.count));
    groups.truncate(limit);
    if output.is_json() {
        let groups = groups.iter().map(to_object).collect();
        return output.object(&GroupsObject { groups, total });
    }
    if groups.is_empty() {
        output.talk("no dead letters");
        return Ok(());
    }
    output.data(&to_text(&groups))?;
    if total > groups.len() {
        output.talk(&format!("{} more groups are not shown: add --limit", total - groups.len()));
    }
    output.talk(&format!("look at one: postrider dlq show EVENT_ID {flags}"));
    Ok(())
}

async fn find(
    admin: &dyn Admin,
    selection: &Selection,
) -> Result<BTreeMap<Cause, Group>, CliError> {
    let mut groups = BTreeMap::new();
    let mut after = None;
    loop {
        let page = admin.dead_letters(selection, after, PAGE).await?;
        let Some(last) = page.last() else { return Ok(groups) };
        after = Some(last.cursor);
        for letter in page {
            add(&mut groups, letter);
        }
    }
}

fn add(groups: &mut BTreeMap<Cause, Group>, letter: DeadLetter) {
    let mut cause = (letter.kind, fingerprint::of(&letter.error));
    if groups.len() >= GROUPS_MAX && !groups.contains_key(&cause) {
        cause.1 = OTHERS.to_owned();
    }
    let at = letter.parked_at;
    let new = || Group { count: 0, first: at, last: at, example: letter.event_id };
    let group = groups.entry(cause).or_insert_with(new);
    group.count += 1;
    group.first = group.first.min(at);
    group.last = group.last.max(at);
}

fn to_object<'g>(((kind, error), group): &'g (Cause, Group)) -> GroupObject<'g> {
    GroupObject {
        kind,
        error,
        count: group.count,
        first_parked_at: rfc3339(group.first),
        last_parked_at: rfc3339(group.last),
        example_event_id: &group.example,
    }
}

fn to_text(groups: &[(Cause, Group)]) -> String {
    let heading = ["COUNT", "FIRST", "LAST", "EXAMPLE", "ERROR"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(groups.iter().map(|((kind, error), group)| {
        vec![
            group.count.to_string(),
            rfc3339(group.first),
            rfc3339(group.last),
            plain(&group.example),
            format!("{}: {}", plain(kind), short(error, ERROR_CHARS_MAX)),
        ]
    }));
    table(&rows)
}
