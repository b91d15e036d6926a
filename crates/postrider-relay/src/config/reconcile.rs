//! Reads `[reconcile]`.

use std::time::Duration;

use super::ReconcileConfig;
use super::quantity::{DAY, MINUTE, SECOND};
use super::section::Section;

/// The longest age that can be asked for.
const OLDER_THAN_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

impl Default for ReconcileConfig {
    fn default() -> Self {
        Self { every: 5 * MINUTE, older_than: 5 * MINUTE, publish: true }
    }
}

/// Reads the section. Without one, and without a key in it, the defaults hold; `None` if it is
/// switched off. A mistake in it is reported.
pub(super) fn read(root: &Section<'_>) -> Option<ReconcileConfig> {
    let defaults = ReconcileConfig::default();
    let Some(section) = root.section("reconcile", "[reconcile]".into()) else {
        return Some(defaults);
    };
    let enabled = section.boolean("enabled").unwrap_or(true);
    let config = ReconcileConfig {
        every: section.duration("every", SECOND..=DAY).unwrap_or(defaults.every),
        older_than: section
            .duration("older_than", SECOND..=OLDER_THAN_MAX)
            .unwrap_or(defaults.older_than),
        publish: section.boolean("publish").unwrap_or(defaults.publish),
    };
    section.finish();
    enabled.then_some(config)
}
