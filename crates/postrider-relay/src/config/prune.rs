//! Reads `[prune]`.

use std::time::Duration;

use super::PruneConfig;
use super::quantity::{DAY, MINUTE, SECOND};
use super::section::Section;

/// How often is looked for something to remove, by default.
const EVERY_DEFAULT: Duration = MINUTE;
/// Longest time that published events can be kept: ten years.
const KEEP_MAX: Duration = Duration::from_secs(3650 * 24 * 60 * 60);

/// Reads the section, if there is one. A mistake in it is reported.
pub(super) fn read(root: &Section<'_>) -> Option<PruneConfig> {
    let section = root.section("prune", "[prune]".into())?;
    if !section.has("keep") {
        let fix = "add keep = \"7d\", the time that published events stay";
        section.report.add(&section.origin, "`keep` is missing in [prune]", fix);
    }
    let keep = section.duration("keep", MINUTE..=KEEP_MAX);
    let every = section.duration("every", SECOND..=DAY).unwrap_or(EVERY_DEFAULT);
    let archive = section.string("archive");
    if let Some(archive) = archive.as_ref().filter(|archive| archive.value.value.is_empty()) {
        let fix = "name a folder, or remove the key";
        section.report.add(&archive.origin, "`archive` in [prune] is empty", fix);
    }
    let unmatched = section.boolean("unmatched").unwrap_or(false);
    section.finish();
    let archive = archive.map(|it| it.value.value.into());
    Some(PruneConfig { keep: keep?, every, archive, unmatched })
}
