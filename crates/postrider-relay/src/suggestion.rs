//! What somebody probably meant.

/// The known word that is nearest to a misspelt one, if any is near.
pub(crate) fn nearest<'w>(word: &str, known: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    let word = word.to_lowercase();
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&word, &candidate.to_lowercase()), candidate))
        // One slip in a short word, up to three in a long one.
        .filter(|(distance, candidate)| *distance <= (candidate.len() / 3).clamp(1, 3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn only_near_words_are_suggested() {
        let known = ["mode", "progress", "ordering", "url"];
        assert_eq!(nearest("progess", known), Some("progress"));
        assert_eq!(nearest("Mode", known), Some("mode"));
        assert_eq!(nearest("odering", known), Some("ordering"));
        assert_eq!(nearest("uri", known), Some("url"));
        assert_eq!(nearest("colour", known), None);
    }
}
