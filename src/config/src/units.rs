//! Parses and formats durations (`30s`, `2 days`) and sizes (`8MiB`).

use std::time::Duration;

use jiff::{Span, SpanRelativeTo};

/// Parses `500ms`, `30s`, `15m`, `24h`, `2 days` or `1h 30m`. A day has 24 hours.
///
/// # Errors
/// A message with a correct example.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("{text} has no unit: {text}s or {text}ms?"));
    }
    let span: Span = text.parse().map_err(|_| "not a duration such as 500ms, 30s, 15m, 24h or 2 days".to_owned())?;
    if span.get_months() != 0 || span.get_years() != 0 {
        return Err("months and years have no fixed length; give days".to_owned());
    }
    let signed = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| "too long".to_owned())?;
    Duration::try_from(signed).map_err(|_| "a duration cannot be negative".to_owned())
}

/// Formats a duration as the shortest exact text: `24h`, `90s`, `500ms`.
pub fn show_duration(duration: Duration) -> String {
    let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos());
    match (seconds, nanos) {
        (0, 0) => "0s".to_owned(),
        (s, 0) if s % 86_400 == 0 && s > 86_400 => format!("{} days", s / 86_400),
        (s, 0) if s % 3600 == 0 => format!("{}h", s / 3600),
        (s, 0) if s % 60 == 0 => format!("{}m", s / 60),
        (s, 0) => format!("{s}s"),
        (_, n) if n % 1_000_000 == 0 => format!("{}ms", duration.as_millis()),
        (_, n) if n % 1000 == 0 => format!("{}us", duration.as_micros()),
        _ => format!("{}ns", duration.as_nanos()),
    }
}

const UNITS: [(&str, u64); 9] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("kb", 1000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("bytes", 1),
    ("byte", 1),
    ("b", 1),
];

/// Parses `8MiB`, `64 KB` or `1024`: whole numbers with units in any case.
///
/// # Errors
/// A message with a correct example.
pub fn parse_size(text: &str) -> Result<u64, String> {
    const NOT_A_SIZE: &str = "not a size such as 8MiB, 64KB or a number of bytes";
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(NOT_A_SIZE.to_owned());
    }
    let unit = unit.trim().to_ascii_lowercase();
    let factor = match unit.as_str() {
        "" => 1,
        "k" | "m" | "g" => {
            let unit = unit.to_ascii_uppercase();
            return Err(format!("the unit {unit} is ambiguous: {number}{unit}iB or {number}{unit}B?"));
        }
        unit => UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor).ok_or(NOT_A_SIZE)?,
    };
    let number: u64 = number.parse().map_err(|_| "too large".to_owned())?;
    number.checked_mul(factor).ok_or_else(|| "too large".to_owned())
}

/// Formats a size as a number of the largest unit that divides it, or of bytes: `8MiB`, `3MB`, `64000`.
pub fn show_size(bytes: u64) -> String {
    for (unit, factor) in
        [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("GB", 1_000_000_000), ("MB", 1_000_000)]
    {
        if bytes != 0 && bytes.is_multiple_of(factor) {
            return format!("{}{unit}", bytes / factor);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed() {
        let cases = [
            ("500ms", 500),
            ("30s", 30_000),
            ("15m", 900_000),
            ("24h", 86_400_000),
            ("2 days", 172_800_000),
            ("1h 30m", 5_400_000),
            ("90 minutes", 5_400_000),
            ("1w", 604_800_000),
            ("0s", 0),
        ];
        for (text, millis) in cases {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "30", "s", "-5s", "5 parsecs", "1 month", "1e3s", "99999999999999999999s", "10s ago"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        assert!(parse_duration("30").unwrap_err().contains("30s"));
    }

    #[test]
    fn formatted_duration_parses_to_same_value() {
        for millis in [0, 1, 500, 1500, 30_000, 60_000, 5_400_000, 86_400_000, 172_800_000, 604_800_000] {
            let duration = Duration::from_millis(millis);
            assert_eq!(parse_duration(&show_duration(duration)), Ok(duration), "{}", show_duration(duration));
        }
    }

    #[test]
    fn sizes_are_parsed() {
        let cases = [
            ("8MiB", 8 << 20),
            ("64KB", 64_000),
            ("64 kib", 65_536),
            ("1024", 1024),
            ("0", 0),
            ("1GiB", 1 << 30),
            ("7b", 7),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "MiB", "8M", "1.5MiB", "-1", "8 MiB x", "99999999999999999999", "20000000000GiB"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert!(parse_size("8M").unwrap_err().contains("8MiB or 8MB"));
        assert!(parse_size("8k").unwrap_err().contains("8KiB or 8KB"));
    }

    #[test]
    fn formatted_size_parses_to_same_value() {
        for bytes in [0, 1, 1000, 1024, 65_536, 64_000, 8 << 20, 3_000_000, 1 << 30, 5_000_000_000] {
            assert_eq!(parse_size(&show_size(bytes)), Ok(bytes), "{}", show_size(bytes));
        }
    }
}
