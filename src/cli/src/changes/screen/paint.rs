//! Escapes, wraps and styles the text of the full-screen inbox. Agents' text is escaped here before it becomes a cell: no
//! control, bidirectional or zero-width character reaches the terminal, and without UTF-8 only ASCII does.

use ratatui::{
    style::{Color, Modifier, Style},
    text::{Line, Span},
};

use crate::output::{self, char_columns, cut_with};
use countersign_domain::changes::visible;

/// The capabilities of the terminal, from which styles and symbols are chosen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Theme {
    pub colour: bool,
    pub unicode: bool,
}

impl Theme {
    /// Detects the capabilities from `NO_COLOR`, `TERM` and the locale (the first of `LC_ALL`, `LC_CTYPE` and `LANG` that is set).
    pub fn from_env() -> Self {
        let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(var).unwrap_or_default();
        let locale = locale.to_string_lossy().to_ascii_lowercase();
        Self { colour: var("NO_COLOR").is_none(), unicode: locale.contains("utf-8") || locale.contains("utf8") }
    }

    /// Escapes foreign text to one line: hidden characters and line breaks become visible.
    pub fn visible(self, text: &str) -> String {
        self.make_visible(text, "\\t")
    }

    /// Escapes a line of a file like [`Theme::visible`], but keeps a tab as wide as people expect it.
    pub fn visible_code(self, text: &str) -> String {
        self.make_visible(text, if self.unicode { "→   " } else { "\\t  " })
    }

    fn make_visible(self, text: &str, tab: &str) -> String {
        let mut out = String::with_capacity(text.len() + 16);
        for (c, is_hidden) in visible::chars_with_hidden(text) {
            match c {
                '\n' => out.push_str("\\n"),
                '\t' => out.push_str(tab),
                c if is_hidden || (!self.unicode && !c.is_ascii()) => out.extend(c.escape_unicode()),
                c => out.push(c),
            }
        }
        out
    }

    /// Returns a symbol of this program, or its replacement without UTF-8.
    pub const fn symbol(self, sign: &'static str, plain: &'static str) -> &'static str {
        if self.unicode { sign } else { plain }
    }

    const fn fg(self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }

    pub const fn good(self) -> Style {
        self.fg(Color::Green)
    }
    pub const fn bad(self) -> Style {
        self.fg(Color::Red)
    }
    pub const fn warn(self) -> Style {
        self.fg(Color::Yellow)
    }
    pub const fn info(self) -> Style {
        self.fg(Color::Cyan)
    }
    pub const fn dim(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }
    pub const fn bold(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// Converts a style of the printed output.
    pub const fn style(self, style: output::Style) -> Style {
        match style {
            output::Style::Plain => Style::new(),
            output::Style::Bold => self.bold(),
            output::Style::Dim => self.dim(),
            output::Style::Red => self.bad(),
            output::Style::Green => self.good(),
            output::Style::Yellow => self.warn(),
            output::Style::Cyan => self.info(),
        }
    }
}

/// Cuts harmless text to `max_columns` columns.
pub fn truncate(text: &str, max_columns: usize, theme: Theme) -> String {
    if max_columns == 0 { String::new() } else { cut_with(text, max_columns, theme.symbol("…", "~")).into_owned() }
}

/// Wraps the pieces of one line at `width` columns; `first` precedes the first row, and `next` each further
/// row.
pub fn wrap(
    pieces: &[(String, Style)],
    width: usize,
    first: &Span<'static>,
    next: &Span<'static>,
) -> Vec<Line<'static>> {
    let row_columns = width.saturating_sub(first.width().max(next.width())).max(1);
    let mut rows: Vec<Line<'static>> = Vec::new();
    let (mut row, mut used) = (vec![first.clone()], 0);
    for (text, style) in pieces {
        let mut run = String::new();
        for c in text.chars() {
            let columns = char_columns(c);
            if used + columns > row_columns && used > 0 {
                row.push(Span::styled(std::mem::take(&mut run), *style));
                rows.push(Line::from(std::mem::replace(&mut row, vec![next.clone()])));
                used = 0;
            }
            run.push(c);
            used += columns;
        }
        if !run.is_empty() {
            row.push(Span::styled(run, *style));
        }
    }
    rows.push(Line::from(row));
    rows
}

/// Wraps pieces at words to rows of `width` columns after `pad`; a word longer than a row is cut.
pub fn wrap_words(pieces: &[(String, Style)], width: usize, pad: &Span<'static>) -> Vec<Line<'static>> {
    let row_columns = width.saturating_sub(pad.width()).max(1);
    let all: Vec<(char, Style)> =
        pieces.iter().flat_map(|(text, style)| text.chars().map(move |c| (c, *style))).collect();
    let mut rows = Vec::new();
    let mut rest = all.as_slice();
    loop {
        let mut used = 0;
        let fits = rest.iter().take_while(|(c, _)| {
            used += char_columns(*c);
            used <= row_columns
        });
        // A row has at least one character, even if that does not fit.
        let fits = fits.count().max(1).min(rest.len());
        let is_whole = fits == rest.len() || rest.get(fits).is_some_and(|(c, _)| *c == ' ');
        let space = rest.get(..fits).and_then(|row| row.iter().rposition(|(c, _)| *c == ' ')).filter(|at| *at > 0);
        let (row, after) = rest.split_at(if is_whole { fits } else { space.unwrap_or(fits) });
        let mut spans = vec![pad.clone()];
        for run in row.chunk_by(|a, b| a.1 == b.1) {
            let style = run.first().map(|(_, style)| *style).unwrap_or_default();
            spans.push(Span::styled(run.iter().map(|(c, _)| c).collect::<String>(), style));
        }
        rows.push(Line::from(spans));
        if after.is_empty() {
            return rows;
        }
        rest =
            after.strip_prefix(&[(' ', after.first().map(|(_, style)| *style).unwrap_or_default())]).unwrap_or(after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNICODE: Theme = Theme { colour: false, unicode: true };
    const ASCII: Theme = Theme { colour: false, unicode: false };

    #[test]
    fn hidden_characters_become_visible() {
        let evil = "a\u{202e}b\u{200b}\u{1b}[2J\r\nü\t";
        assert_eq!(UNICODE.visible(evil), r"a\u{202e}b\u{200b}\u{1b}[2J\u{d}\nü\t");
        assert_eq!(ASCII.visible("ü漢"), r"\u{fc}\u{6f22}");
        assert_eq!(UNICODE.visible_code("\tx"), "→   x");
        assert!(ASCII.visible_code(evil).is_ascii());
    }

    #[test]
    fn truncated_text_fits_its_columns() {
        assert_eq!(truncate("hello", 5, UNICODE), "hello");
        assert_eq!(truncate("hello", 4, UNICODE), "hel…");
        assert_eq!(truncate("漢字漢", 4, ASCII), "漢~");
        assert_eq!(truncate("a", 0, UNICODE), "");
    }

    #[test]
    fn wrapped_rows_repeat_their_prefix() {
        let (first, next) = (Span::raw("+ "), Span::raw("+>"));
        let rows = wrap(&[("abcdef漢".into(), Style::new()), ("gh".into(), Style::new())], 6, &first, &next);
        let rows: Vec<String> = rows.iter().map(ToString::to_string).collect();
        assert_eq!(rows, ["+ abcd", "+>ef漢", "+>gh"]);
        assert_eq!(wrap(&[], 6, &first, &next).len(), 1);
        // Even a width of zero ends.
        assert_eq!(wrap(&[("abc".into(), Style::new())], 0, &first, &next).len(), 3);
    }

    #[test]
    fn words_are_cut_only_if_longer_than_a_row() {
        let rows = |text: &str, width| {
            let pieces: Vec<_> = text.split('|').map(|piece| (piece.to_owned(), Style::new())).collect();
            wrap_words(&pieces, width, &Span::raw(" ")).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(rows("one two three", 8), [" one two", " three"]);
        assert_eq!(rows("one| two", 5), [" one", " two"]);
        assert_eq!(rows("abcdefgh ij", 5), [" abcd", " efgh", " ij"]);
        assert_eq!(rows("漢字漢 a", 6), [" 漢字", " 漢 a"]);
        assert_eq!(rows("", 5), [" "]);
        assert_eq!(rows("a  b", 3), [" a ", " b"]);
        assert_eq!(rows("ab", 0), [" a", " b"]);
        assert_eq!(rows(" ab", 2), ["  ", " a", " b"]);
    }
}
