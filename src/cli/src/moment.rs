//! Parses moments on the command line, and formats times. `--since` and `--until` accept the same forms in every command.

use jiff::{SignedDuration, Timestamp, civil::Date, tz::TimeZone};

use countersign_config::units::parse_duration;

/// The accepted forms of a moment, for help texts.
pub const MOMENT_SYNTAX: &str = "a time, like 2026-07-28T12:00:00Z or 2026-07-28, or how long ago, like 90s, 2h or 3d";

/// The position in the feed from which to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    Moment(Timestamp),
    /// After the event with this number. Before `--after` existed, this was a form of `--since`.
    Event(u64),
}

/// Parses a moment: a time, a day (its beginning in local time), or how long ago it was.
///
/// # Errors
/// Returns a message that names the accepted forms.
pub fn parse_moment(text: &str) -> Result<Timestamp, String> {
    resolve(text, Timestamp::now()).ok_or_else(|| format!("write {MOMENT_SYNTAX}"))
}

/// Parses a moment or the number of an event.
///
/// # Errors
/// Fails as [`parse_moment`] does.
pub fn parse_since(text: &str) -> Result<Since, String> {
    // A bare number is not a moment, because each form of a moment has a unit or a dash.
    match text.parse() {
        Ok(event) => Ok(Since::Event(event)),
        Err(_) => parse_moment(text).map(Since::Moment),
    }
}

/// Parses a moment in the future: a time, a day (its beginning in local time), or in how long it is.
///
/// # Errors
/// Returns a message that names the accepted forms.
pub fn parse_end(text: &str) -> Result<Timestamp, String> {
    resolve_end(text, Timestamp::now()).ok_or_else(|| {
        "write a time, like 2026-07-28T12:00:00Z or 2026-07-28, or in how long, like 8h or 3d".to_owned()
    })
}

fn resolve_end(text: &str, now: Timestamp) -> Option<Timestamp> {
    parse_time_or_day(text).or_else(|| now.checked_add(signed_duration(text)?).ok())
}

/// Resolves a text to a moment, relative to `now`.
pub fn resolve(text: &str, now: Timestamp) -> Option<Timestamp> {
    parse_time_or_day(text)
        .or_else(|| now.checked_sub(signed_duration(text.strip_suffix(" ago").unwrap_or(text))?).ok())
}

fn parse_time_or_day(text: &str) -> Option<Timestamp> {
    if let Ok(time) = text.parse() {
        return Some(time);
    }
    let day = text.parse::<Date>().ok()?;
    day.to_zoned(TimeZone::system()).ok().map(|zoned| zoned.timestamp())
}

fn signed_duration(text: &str) -> Option<SignedDuration> {
    SignedDuration::try_from(parse_duration(text).ok()?).ok()
}

/// Formats a duration as `3m`, `2h` or `5d`.
pub fn format_duration(duration: SignedDuration) -> String {
    let seconds = duration.abs().as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Formats a time in the local time zone.
pub fn format_local_time(at: Timestamp, format: &str) -> String {
    at.to_zoned(TimeZone::system()).strftime(format).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moment_is_a_time_a_day_or_a_duration() {
        let now: Timestamp = "2027-01-10T00:00:00Z".parse().unwrap();
        let at = |text: &str| super::resolve(text, now).map(|at| at.to_string());
        assert_eq!(at("2026-07-28T12:00:00Z").as_deref(), Some("2026-07-28T12:00:00Z"));
        assert_eq!(at("2026-07-28T14:00:00+02:00").as_deref(), Some("2026-07-28T12:00:00Z"));
        assert!(at("2026-07-28").is_some_and(|day| day.starts_with("2026-07-2")));
        for (text, expected) in [
            ("90s", "2027-01-09T23:58:30Z"),
            ("2h", "2027-01-09T22:00:00Z"),
            ("3d", "2027-01-07T00:00:00Z"),
            ("2 days", "2027-01-08T00:00:00Z"),
            ("1h 30m", "2027-01-09T22:30:00Z"),
            ("2h ago", "2027-01-09T22:00:00Z"),
        ] {
            assert_eq!(at(text).as_deref(), Some(expected), "{text}");
        }
        for invalid in ["", "7", "2", "yesterday", "-2h", "2 months", "99999999999d", "12:00"] {
            assert_eq!(at(invalid), None, "{invalid}");
        }
        let end = |text: &str| super::resolve_end(text, now).map(|at| at.to_string());
        assert_eq!(end("2026-07-28T12:00:00Z").as_deref(), Some("2026-07-28T12:00:00Z"));
        assert_eq!((end("3d").as_deref(), end("2h ago")), (Some("2027-01-13T00:00:00Z"), None));
        assert_eq!(parse_since("42"), Ok(Since::Event(42)));
        assert!(matches!(parse_since("2h"), Ok(Since::Moment(_))));
        assert!(parse_since("soon").unwrap_err().contains("2h"));
    }
}
