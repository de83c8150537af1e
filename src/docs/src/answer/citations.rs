//! An answer cites nothing that was not given to who wrote it.

use super::Source;

/// The answer without numbers of passages that there are none of, and without links to anywhere that no passage names.
pub(super) fn kept(answer: &str, sources: &[Source]) -> String {
    numbers(&links(answer.trim(), sources), sources.len())
}

/// Takes out `[7]` where there are fewer passages, and the numbers of `[1, 7]` that are none.
fn numbers(answer: &str, count: usize) -> String {
    let mut out = String::with_capacity(answer.len());
    let mut rest = answer;
    while let Some(start) = rest.find('[') {
        let (before, from) = rest.split_at(start);
        out.push_str(before);
        let inner = from.find(']').and_then(|end| from.get(1..end));
        let parsed = inner.and_then(|inner| {
            let numbers: Option<Vec<u64>> = inner.split([',', ';']).map(|number| number.trim().parse().ok()).collect();
            numbers
        });
        match (inner, parsed) {
            (Some(inner), Some(cited)) => {
                let valid: Vec<String> =
                    cited.iter().filter(|number| (1..=count as u64).contains(number)).map(u64::to_string).collect();
                if valid.is_empty() {
                    // Nor the space before it.
                    out.truncate(out.trim_end_matches(' ').len());
                } else {
                    out.push_str(&format!("[{}]", valid.join(", ")));
                }
                rest = from.get(inner.len() + 2..).unwrap_or_default();
            }
            _ => {
                out.push('[');
                rest = from.get(1..).unwrap_or_default();
            }
        }
    }
    out.push_str(rest);
    out
}

/// Takes the address out of `[text](address)` and `<address>` where no passage has it.
fn links(answer: &str, sources: &[Source]) -> String {
    let given = |address: &str| {
        let address = address.trim();
        sources.iter().any(|source| source.hit.path == address || source.given().contains(address))
    };
    let mut out = String::with_capacity(answer.len());
    let mut rest = answer;
    while let Some(at) = rest.find("](") {
        let (before, from) = rest.split_at(at);
        let Some(end) = from.find(')') else { break };
        let address = from.get(2..end).unwrap_or_default();
        let address_only = address.split_whitespace().next().unwrap_or_default();
        if given(address_only) && !address_only.is_empty() {
            out.push_str(before);
            out.push_str(from.get(..=end).unwrap_or_default());
        } else {
            match before.rfind('[') {
                Some(open) => {
                    let (head, text) = before.split_at(open);
                    out.push_str(head.strip_suffix('!').unwrap_or(head));
                    out.push_str(text.get(1..).unwrap_or_default());
                }
                None => out.push_str(before),
            }
        }
        rest = from.get(end + 1..).unwrap_or_default();
    }
    out.push_str(rest);
    bare(&out, &given)
}

/// Takes out addresses of the web that stand there by themselves.
fn bare(answer: &str, given: &dyn Fn(&str) -> bool) -> String {
    let mut out = String::with_capacity(answer.len());
    for word in answer.split_inclusive(char::is_whitespace) {
        let at = ["https://", "http://"].iter().filter_map(|scheme| word.find(scheme)).min();
        let address = at.and_then(|at| word.get(at..)).map(|address| {
            address.trim_end_matches(|c: char| {
                c.is_whitespace() || matches!(c, '.' | ',' | ')' | '>' | ';' | ':' | '!' | '?' | '"' | '*' | '`')
            })
        });
        match (at, address) {
            (Some(at), Some(address)) if !given(address) => {
                out.push_str(word.get(..at).unwrap_or_default());
                out.push_str("(address left out)");
                out.push_str(word.get(at + address.len()..).unwrap_or_default());
            }
            _ => out.push_str(word),
        }
    }
    out
}
