//! Pages of lists that are held in memory, by the same parameters as those of the store: `limit` and `cursor`.
//!
//! A cursor is the key of the last item of the page before, so that what comes and goes in between moves nothing.

use super::{Problem, Query};
use countersign_protocol::ErrorKind;
use countersign_review::Page;

/// The page that a request asks for. `items` are in the order of their keys, each of which is another.
///
/// # Errors
/// `INVALID_PARAMS` for a limit or a cursor that is none.
pub fn of<T, K: Ord + std::fmt::Display + std::str::FromStr>(
    query: &Query,
    default: usize,
    items: Vec<T>,
    key: impl Fn(&T) -> K,
) -> Result<Page<T>, Problem> {
    let limit = query.limit_or(default)?;
    let after = query.get("cursor").map(str::parse::<K>).transpose();
    let after = after.map_err(|_| {
        Problem::new(ErrorKind::InvalidParams, "this cursor is not valid here; leave it out to begin again")
    })?;
    let start = after.map_or(0, |after| items.partition_point(|item| key(item) <= after));
    Ok(cut(items, start, limit, |last| key(last).to_string()))
}

/// The page that a request asks for of a list in an order of its own; all of it where it asks for none. An item is
/// known by its name, and a cursor is the name of the last one of the page before.
///
/// # Errors
/// `INVALID_PARAMS` for a limit that is none, and for a cursor that names nothing that is there.
pub fn named<T>(query: &Query, items: Vec<T>, name: impl Fn(&T) -> &str) -> Result<Page<T>, Problem> {
    let cursor = query.get("cursor");
    let limit = if query.get("limit").is_none() && cursor.is_none() { usize::MAX } else { query.limit()? };
    let unknown = || {
        Problem::new(
            ErrorKind::InvalidParams,
            "this cursor is not valid here, or the entry that it names is gone; leave it out to begin again",
        )
    };
    let start = match cursor {
        None => 0,
        Some(cursor) => items.iter().position(|item| name(item) == cursor).ok_or_else(unknown)? + 1,
    };
    Ok(cut(items, start, limit, |last| name(last).to_owned()))
}

fn cut<T>(items: Vec<T>, start: usize, limit: usize, cursor: impl Fn(&T) -> String) -> Page<T> {
    let more = items.len() - start > limit;
    let items: Vec<T> = items.into_iter().skip(start).take(limit).collect();
    let next_cursor = items.last().filter(|_| more).map(cursor);
    Page { items, next_cursor }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(query: &str, items: &[u32]) -> Result<Page<u32>, Problem> {
        of(&Query::parse(query, &["limit", "cursor"]).unwrap(), 3, items.to_vec(), |item| *item)
    }

    #[test]
    fn pages_go_on_after_the_last_item_whatever_comes_or_goes() {
        let first = page("", &[1, 2, 4, 5]).unwrap();
        assert_eq!((first.items, first.next_cursor.as_deref()), (vec![1, 2, 4], Some("4")));
        assert_eq!(page("cursor=4", &[1, 2, 4, 5]).unwrap(), Page { items: vec![5], next_cursor: None });
        // What the cursor names is gone, and something came before it.
        assert_eq!(page("cursor=4&limit=1", &[0, 1, 5, 6]).unwrap().items, [5]);
        assert_eq!(page("cursor=9", &[1]).unwrap(), Page { items: vec![], next_cursor: None });
        assert_eq!(page("limit=4", &[1, 2, 4, 5]).unwrap().next_cursor, None);
    }

    #[test]
    fn lists_in_an_order_of_their_own_are_whole_unless_a_page_is_asked_for() {
        let page = |query: &str| {
            let query = Query::parse(query, &["limit", "cursor"]).unwrap();
            named(&query, vec!["z", "a", "m"], |item| item)
        };
        assert_eq!(page("").unwrap(), Page { items: vec!["z", "a", "m"], next_cursor: None });
        let first = page("limit=2").unwrap();
        assert_eq!((first.items, first.next_cursor.as_deref()), (vec!["z", "a"], Some("a")));
        assert_eq!(page("limit=2&cursor=a").unwrap(), Page { items: vec!["m"], next_cursor: None });
        assert_eq!(page("cursor=b").unwrap_err().error.kind, ErrorKind::InvalidParams);
    }

    #[test]
    fn what_is_no_cursor_is_refused() {
        assert_eq!(page("cursor=nonsense", &[1]).unwrap_err().error.kind, ErrorKind::InvalidParams);
        assert_eq!(page("limit=0", &[1]).unwrap_err().error.kind, ErrorKind::InvalidParams);
    }
}
