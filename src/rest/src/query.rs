//! Parses query strings: known names only, each once, strictly typed. An empty value counts as missing.

use actix_web::{HttpRequest, web};
use serde::de::{DeserializeOwned, IntoDeserializer as _, value::Error as ValueError};

use super::Problem;
use countersign_protocol::ErrorKind;

/// Maximum size in bytes of a value.
const MAX_VALUE_BYTES: usize = 1024;
/// Maximum number of items of a list.
const MAX_LIST_ITEMS: usize = 64;

/// The parameters of a request.
#[derive(Debug)]
pub struct Query(Vec<(String, String)>);

/// Creates the problem of a parameter that is refused.
fn invalid_params(reason: String) -> Problem {
    Problem::new(ErrorKind::InvalidParams, reason)
}

impl Query {
    /// Parses the query string of a request.
    ///
    /// # Errors
    /// `INVALID_PARAMS` for a name that is not in `known_names` or is given twice, and for values over 1 KiB.
    pub fn read(request: &HttpRequest, known_names: &[&str]) -> Result<Self, Problem> {
        Self::parse(request.query_string(), known_names)
    }

    pub(super) fn parse(text: &str, known_names: &[&str]) -> Result<Self, Problem> {
        let pairs = web::Query::<Vec<(String, String)>>::from_query(text)
            .map_err(|_| invalid_params("the query string cannot be read".into()))?
            .into_inner();
        for (index, (name, value)) in pairs.iter().enumerate() {
            if !known_names.contains(&name.as_str()) {
                let escaped_name = name.escape_default().to_string();
                let known = if known_names.is_empty() { "none".to_owned() } else { known_names.join(", ") };
                return Err(invalid_params(format!("unknown parameter {escaped_name:.60}; known: {known}")));
            }
            if pairs.iter().take(index).any(|(other, _)| other == name) {
                return Err(invalid_params(format!("{name} is given twice")));
            }
            if value.len() > MAX_VALUE_BYTES {
                return Err(invalid_params(format!("{name} is too long")));
            }
        }
        Ok(Self(pairs))
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    /// Returns the number of items on a page: 1 to 200, 50 by default.
    ///
    /// # Errors
    /// `INVALID_PARAMS`
    pub fn limit(&self) -> Result<usize, Problem> {
        match usize::try_from(self.number("limit")?.unwrap_or(50)) {
            Ok(limit @ 1..=200) => Ok(limit),
            _ => Err(invalid_params("limit must be 1 to 200".into())),
        }
    }

    /// Returns a whole number without a sign.
    ///
    /// # Errors
    /// `INVALID_PARAMS`
    pub fn number(&self, name: &str) -> Result<Option<u64>, Problem> {
        let Some(text) = self.get(name) else { return Ok(None) };
        parse_number(text).map(Some).ok_or_else(|| invalid_params(format!("{name} must be a whole number")))
    }

    /// Returns `true` for `true`, and `false` for `false` or without a value.
    ///
    /// # Errors
    /// `INVALID_PARAMS`
    pub fn boolean(&self, name: &str) -> Result<bool, Problem> {
        let Some(text) = self.get(name) else { return Ok(false) };
        text.parse().map_err(|_| invalid_params(format!("{name} must be true or false")))
    }

    /// Returns a time (RFC 3339).
    ///
    /// # Errors
    /// `INVALID_PARAMS`
    pub fn time(&self, name: &str) -> Result<Option<jiff::Timestamp>, Problem> {
        let Some(text) = self.get(name) else { return Ok(None) };
        // A plus sign that was not escaped arrives as a space.
        let time = text.replace(' ', "+").parse();
        time.map(Some).map_err(|_| invalid_params(format!("{name} must be a time like 2026-07-28T12:00:00Z")))
    }

    /// Returns the values of a comma-separated list whose items are texts or names of an enumeration.
    ///
    /// # Errors
    /// `INVALID_PARAMS` with the valid names, or for more than [`MAX_LIST_ITEMS`] values.
    pub fn values<T: DeserializeOwned>(&self, name: &str) -> Result<Vec<T>, Problem> {
        let words = self.get(name).unwrap_or_default().split(',').map(str::trim).filter(|word| !word.is_empty());
        let words: Vec<&str> = words.collect();
        if words.len() > MAX_LIST_ITEMS {
            return Err(invalid_params(format!("{name} has more than {MAX_LIST_ITEMS} values")));
        }
        words
            .into_iter()
            .map(|word| {
                T::deserialize(word.into_deserializer())
                    .map_err(|error: ValueError| invalid_params(format!("{name}: {:.300}", error.to_string())))
            })
            .collect()
    }
}

/// Parses a number that consists of digits only.
pub fn parse_number(text: &str) -> Option<u64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_domain::changes::ChangeState;

    #[test]
    fn names_must_be_known_and_unique() {
        let query = Query::parse("status=pending%2Cstale&limit=7&cursor=", &["status", "limit", "cursor"]).unwrap();
        assert_eq!(query.values::<ChangeState>("status").unwrap(), [ChangeState::Pending, ChangeState::Stale]);
        assert_eq!((query.limit().unwrap(), query.get("cursor"), query.get("other")), (7, None, None));
        for bad in ["stauts=pending", "limit=1&limit=2", &format!("cursor={}", "x".repeat(2000))] {
            assert_eq!(Query::parse(bad, &["limit", "cursor"]).unwrap_err().error.kind, ErrorKind::InvalidParams);
        }
        assert!(Query::parse("stauts=x", &["status"]).unwrap_err().error.message.contains("stauts"));
    }

    #[test]
    fn limits_are_numbers_from_1_to_200() {
        let limit = |text: &str| Query::parse(text, &["limit"]).unwrap().limit();
        assert_eq!(limit("").unwrap(), 50);
        assert_eq!(limit("limit=200").unwrap(), 200);
        for bad in ["0", "201", "-1", "+5", "1.0", "x", "%20 1", "99999999999999999999999", "1e2"] {
            limit(&format!("limit={bad}")).unwrap_err();
        }
    }

    #[test]
    fn booleans_are_true_or_false() {
        let preview = |text: &str| Query::parse(text, &["preview"]).unwrap().boolean("preview");
        for (text, expected) in [("", false), ("preview=", false), ("preview=false", false), ("preview=true", true)] {
            assert_eq!(preview(text).unwrap(), expected, "{text}");
        }
        for bad in ["1", "0", "True", "yes", "true%20"] {
            assert_eq!(preview(&format!("preview={bad}")).unwrap_err().error.kind, ErrorKind::InvalidParams, "{bad}");
        }
    }

    #[test]
    fn unknown_states_are_refused_with_valid_ones() {
        let problem = Query::parse("status=open", &["status"]).unwrap().values::<ChangeState>("status").unwrap_err();
        assert!(problem.error.message.contains("outcome_unknown"), "{problem}");
    }

    #[test]
    fn lists_of_more_than_64_values_are_refused() {
        let query = |name: &str, value: &str, count: usize| {
            Query::parse(&format!("{name}={}", [value].repeat(count).join(",")), &["tool", "status"]).unwrap()
        };
        assert_eq!(query("tool", "x", 64).values::<String>("tool").unwrap().len(), 64);
        assert_eq!(query("tool", "x", 65).values::<String>("tool").unwrap_err().error.kind, ErrorKind::InvalidParams);
        assert_eq!(query("status", "stale", 64).values::<ChangeState>("status").unwrap().len(), 64);
        let problem = query("status", "stale", 65).values::<ChangeState>("status").unwrap_err();
        assert_eq!(problem.error.kind, ErrorKind::InvalidParams);
    }

    #[test]
    fn lists_and_times_are_parsed_leniently() {
        let query = |text: &str| Query::parse(text, &["tools", "since"]).unwrap();
        assert_eq!(query("tools=a,%20b,,c%20").values::<String>("tools").unwrap(), ["a", "b", "c"]);
        assert_eq!(query("").values::<String>("tools").unwrap(), Vec::<String>::new());
        let noon = Some("2026-07-28T12:00:00Z".parse().unwrap());
        for same in ["2026-07-28T12:00:00Z", "2026-07-28T14:00:00%2B02:00", "2026-07-28T14:00:00+02:00"] {
            assert_eq!(query(&format!("since={same}")).time("since").unwrap(), noon, "{same}");
        }
        assert_eq!(query("since=").time("since").unwrap(), None);
        for wrong in ["yesterday", "2026-07-28", "2026-07-28T12:00:00", "1785240000"] {
            let problem = query(&format!("since={wrong}")).time("since").unwrap_err();
            assert_eq!(problem.error.kind, ErrorKind::InvalidParams, "{wrong}");
        }
    }
}
