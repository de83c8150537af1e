//! Cuts lists in memory into pages, with the same parameters as lists of the store: `limit` and `cursor`.
//!
//! A cursor is the key of the last item of the previous page, so that added and removed items shift nothing.

use utoipa::IntoParams;

use super::{Problem, Query};
use countersign_protocol::ErrorKind;
use countersign_review::Page;

/// The parameters of a list that is always shown in pages.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub struct PageParams {
    /// The number of items on a page.
    #[param(minimum = 1, maximum = 200, default = 50)]
    pub limit: Option<u32>,
    /// The `nextCursor` of the previous page.
    #[param(max_length = 1024)]
    pub cursor: Option<String>,
}

/// The parameters of a list that is shown as a whole without them.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub struct OptionalPageParams {
    /// The number of items on a page. Without it and without a cursor, the list is whole.
    #[param(minimum = 1, maximum = 200)]
    pub limit: Option<u32>,
    /// The `nextCursor` of the previous page.
    #[param(max_length = 1024)]
    pub cursor: Option<String>,
}

/// Returns a page of `items`, which are sorted by unique keys.
///
/// # Errors
/// `INVALID_PARAMS` for an invalid limit or cursor.
pub fn cut_by_key<T, K: Ord + std::fmt::Display + std::str::FromStr>(
    query: &Query,
    items: Vec<T>,
    key: impl Fn(&T) -> K,
) -> Result<Page<T>, Problem> {
    let limit = query.limit()?;
    let after = query.get("cursor").map(str::parse::<K>).transpose();
    let after = after.map_err(|_| {
        Problem::new(ErrorKind::InvalidParams, "this cursor is not valid here; leave it out to begin again")
    })?;
    let start = after.map_or(0, |after| items.partition_point(|item| key(item) <= after));
    Ok(cut_page(items, start, limit, |last| key(last).to_string()))
}

/// Returns a page of a list in any order, or the whole list if neither a limit nor a cursor is given. The cursor is the name of
/// the last item of the previous page.
///
/// # Errors
/// `INVALID_PARAMS` for an invalid limit, and for a cursor that names no item.
pub fn cut_by_name<T>(query: &Query, items: Vec<T>, name: impl Fn(&T) -> &str) -> Result<Page<T>, Problem> {
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
    Ok(cut_page(items, start, limit, |last| name(last).to_owned()))
}

fn cut_page<T>(items: Vec<T>, start: usize, limit: usize, cursor: impl Fn(&T) -> String) -> Page<T> {
    let has_more = items.len() - start > limit;
    let items: Vec<T> = items.into_iter().skip(start).take(limit).collect();
    let next_cursor = items.last().filter(|_| has_more).map(cursor);
    Page { items, next_cursor }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(query: &str, items: &[u32]) -> Result<Page<u32>, Problem> {
        cut_by_key(&Query::parse(query, &["limit", "cursor"]).unwrap(), items.to_vec(), |item| *item)
    }

    #[test]
    fn page_continues_after_last_item_despite_changes() {
        let first = page("limit=3", &[1, 2, 4, 5]).unwrap();
        assert_eq!((first.items, first.next_cursor.as_deref()), (vec![1, 2, 4], Some("4")));
        assert_eq!(page("cursor=4", &[1, 2, 4, 5]).unwrap(), Page { items: vec![5], next_cursor: None });
        // The item of the cursor was removed, and another one added before it.
        assert_eq!(page("cursor=4&limit=1", &[0, 1, 5, 6]).unwrap().items, [5]);
        assert_eq!(page("cursor=9", &[1]).unwrap(), Page { items: vec![], next_cursor: None });
        assert_eq!(page("limit=4", &[1, 2, 4, 5]).unwrap().next_cursor, None);
    }

    #[test]
    fn unsorted_list_is_whole_without_limit_or_cursor() {
        let page = |query: &str| {
            let query = Query::parse(query, &["limit", "cursor"]).unwrap();
            cut_by_name(&query, vec!["z", "a", "m"], |item| item)
        };
        assert_eq!(page("").unwrap(), Page { items: vec!["z", "a", "m"], next_cursor: None });
        let first = page("limit=2").unwrap();
        assert_eq!((first.items, first.next_cursor.as_deref()), (vec!["z", "a"], Some("a")));
        assert_eq!(page("limit=2&cursor=a").unwrap(), Page { items: vec!["m"], next_cursor: None });
        assert_eq!(page("cursor=b").unwrap_err().error.kind, ErrorKind::InvalidParams);
    }

    #[test]
    fn invalid_cursor_is_refused() {
        assert_eq!(page("cursor=nonsense", &[1]).unwrap_err().error.kind, ErrorKind::InvalidParams);
        assert_eq!(page("limit=0", &[1]).unwrap_err().error.kind, ErrorKind::InvalidParams);
    }
}
