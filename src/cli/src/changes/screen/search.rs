//! Parses the search line: words search texts, and `tool:x server:y by:z state:w since:2h older:1d` narrow the list down.

use jiff::Timestamp;

use crate::moment;

/// Returns the query parameters of `GET /api/changes`.
pub fn query(line: &str, now: Timestamp) -> Vec<(&'static str, String)> {
    let mut query: Vec<(&'static str, String)> = Vec::new();
    let mut words = Vec::new();
    for word in line.split_whitespace() {
        let filter = word.split_once(':').filter(|(_, value)| !value.is_empty()).and_then(|(name, value)| {
            let moment = || moment::resolve(value, now).map(|at| at.to_string());
            let text = || Some(value.to_owned());
            match name {
                "tool" => Some(("tool", text()?)),
                "server" => Some(("server", text()?)),
                "by" | "principal" => Some(("principal", text()?)),
                "state" | "status" => Some(("status", text()?)),
                "since" | "newer" => Some(("since", moment()?)),
                "until" | "older" => Some(("until", moment()?)),
                _ => None,
            }
        });
        match filter {
            // Values of the same filter become one parameter, separated by commas.
            Some((name, value)) => match query.iter_mut().find(|(key, _)| *key == name) {
                Some((_, values)) if !matches!(name, "since" | "until") => {
                    values.push(',');
                    values.push_str(&value);
                }
                Some((_, values)) => *values = value,
                None => query.push((name, value)),
            },
            None => words.push(word),
        }
    }
    if !words.is_empty() {
        query.push(("q", words.join(" ")));
    }
    query
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_line_is_split_into_words_and_filters() {
        let now: Timestamp = "2027-01-02T00:00:00Z".parse().unwrap();
        let line = "fix  tool:write_file tool:edit_file by:bob login older:1d nope:x since:never";
        assert_eq!(
            query(line, now),
            [
                ("tool", "write_file,edit_file".to_owned()),
                ("principal", "bob".to_owned()),
                ("until", "2027-01-01T00:00:00Z".to_owned()),
                ("q", "fix login nope:x since:never".to_owned()),
            ]
        );
        assert!(query("  ", now).is_empty());
        // Absurd durations are searched as words.
        assert_eq!(query("older:9223372036854775807d", now)[0].0, "q");
        assert_eq!(query("older:ü", now)[0].0, "q");
    }
}
