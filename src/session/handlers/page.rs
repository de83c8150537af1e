//! Pages of lists by opaque cursors (2025-11-25/server/utilities/pagination).

use crate::protocol::{
    McpError,
    cursor::{self, Cursor},
};

/// Entries on a page.
pub const PAGE: usize = 100;

/// The list under `key` from where `cursor` points, with `nextCursor` where more follow.
///
/// # Errors
/// `-32602` for a cursor that this list did not give out.
pub fn page<'a, I>(key: &'static str, items: I, cursor: Option<&str>, generation: u64) -> Result<String, McpError>
where
    I: ExactSizeIterator<Item = &'a str>,
{
    let from = usize::try_from(cursor::start(key, cursor, Some(generation))?).unwrap_or(usize::MAX);
    let total = items.len();
    let mut out = format!(r#"{{"{key}":["#);
    for (i, item) in items.skip(from).take(PAGE).enumerate() {
        if i > 0 {
            out.push(',');
        }
        out.push_str(item);
    }
    out.push(']');
    if from.saturating_add(PAGE) < total {
        let next = Cursor { offset: (from + PAGE) as u64, generation: Some(generation) };
        out.push_str(&format!(r#","nextCursor":"{}""#, cursor::encode(key, next)));
    }
    out.push('}');
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_comes_once() {
        let all: Vec<String> = (0..250).map(|n| n.to_string()).collect();
        let mut seen = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let page = page("tools", all.iter().map(String::as_str), cursor.as_deref(), 7).unwrap();
            let page: serde_json::Value = serde_json::from_str(&page).unwrap();
            seen.extend(page["tools"].as_array().unwrap().iter().map(ToString::to_string));
            match page.get("nextCursor") {
                Some(next) => cursor = Some(next.as_str().unwrap().to_owned()),
                None => break,
            }
        }
        assert_eq!(seen, all);
    }

    #[test]
    fn a_cursor_of_another_list_is_refused() {
        let all = ["1"; 101];
        let first = page("tools", all.into_iter(), None, 7).unwrap();
        let first: serde_json::Value = serde_json::from_str(&first).unwrap();
        let cursor = first["nextCursor"].as_str().unwrap();
        assert!(page("prompts", all.into_iter(), Some(cursor), 7).is_err());
        assert!(page("tools", all.into_iter(), Some("garbage"), 7).is_err());
        assert!(page("tools", all.into_iter(), Some(""), 7).is_err());
    }
}
