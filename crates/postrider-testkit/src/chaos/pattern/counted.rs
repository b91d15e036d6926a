//! What billing counts, and tells in its log, because its memory is lost with it.

use postrider_consumer::Metrics;

const WORD: &str = "counted: ";

/// What it has counted since its start, as a line of its log.
pub fn counted(metrics: &Metrics) -> String {
    let counts = metrics.counts();
    format!("{WORD}{} duplicates, {} retries", counts.duplicates, counts.retries)
}

/// How many duplicates a log tells of, over all starts of the process. Each start begins to count
/// from zero, and says so.
pub(super) fn duplicates_in(log: &str) -> u64 {
    let lines = log.lines().filter_map(|line| line.split_once(WORD)).map(|(_, counts)| counts);
    let counts = lines.filter_map(|counts| counts.split(' ').next()?.parse::<u64>().ok());
    let (sum, last) = counts.fold((0, 0), |(sum, last), count| match count {
        0 => (sum + last, 0),
        count => (sum, count),
    });
    sum + last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_each_start_has_counted_is_added_up() {
        let line = counted(&Metrics::default());
        assert_eq!(duplicates_in(&line), 0);
        let told = |count: u64| line.replacen('0', &count.to_string(), 1);
        let log = [told(0), told(3), "else".to_owned(), told(4), told(0), told(9), told(0)];
        assert_eq!(duplicates_in(&log.join("\n")), 13);
    }
}
