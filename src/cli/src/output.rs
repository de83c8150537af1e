//! Writes results to stdout and messages to stderr. Results are escaped, so that text from agents can neither move the cursor
//! nor hide or reorder text. The text of messages must be escaped before.

use std::{
    borrow::Cow,
    io::{self, BufRead, BufWriter, IsTerminal, Write},
    path::Path,
};

use serde_json::value::RawValue;
use unicode_width::UnicodeWidthChar;

use super::exit::{Exit, Failure};
use countersign_domain::changes::visible::{escape_hidden, is_hidden};
use countersign_protocol::json::{Token, tokens};

/// A colour or weight of text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    #[default]
    Plain,
    Bold,
    Dim,
    Red,
    Green,
    Yellow,
    Cyan,
}

impl Style {
    const fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Bold => "\x1b[1m",
            Self::Dim => "\x1b[2m",
            Self::Red => "\x1b[31m",
            Self::Green => "\x1b[32m",
            Self::Yellow => "\x1b[33m",
            Self::Cyan => "\x1b[36m",
        }
    }
}

/// Returns the style of a verdict of the policy.
pub fn verdict_style(verdict: &str) -> Style {
    match verdict {
        "allow" => Style::Green,
        "deny" => Style::Red,
        _ => Style::Yellow,
    }
}

/// The destination of results. Once its reader has closed the pipe, like `head -1`, it discards what is written. The command
/// still does all that was requested, and its exit code says how that ended.
pub struct Output {
    // Not locked, because `stdio` hands stdout to the protocol while this value lives.
    sink: Box<dyn Write>,
    #[cfg(test)]
    memory: tests::SharedBuffer,
    is_closed: bool,
    colour: bool,
    /// `true` if the output is a terminal, which obeys control characters.
    pub is_terminal: bool,
    /// The columns of the terminal; `None` elsewhere, where nothing is cut.
    pub width: Option<usize>,
}

impl Output {
    /// Writes to stdout, with colour on a terminal unless `NO_COLOR` is set (no-color.org) or `TERM` is `dumb`.
    pub fn stdout() -> Self {
        let stdout = io::stdout();
        let is_terminal = stdout.is_terminal();
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let colour = is_terminal && set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb");
        let size = rustix::termios::tcgetwinsize(&stdout).ok();
        let width = size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns >= 20);
        Self {
            sink: Box::new(BufWriter::new(stdout)),
            #[cfg(test)]
            memory: tests::SharedBuffer::default(),
            is_closed: false,
            colour,
            is_terminal,
            width,
        }
    }

    /// Writes text that is known to be harmless, unchanged.
    pub fn write_raw(&mut self, text: &str) -> io::Result<()> {
        if self.is_closed {
            return Ok(());
        }
        let written = self.sink.write_all(text.as_bytes());
        self.accept_closed_pipe(written)
    }

    /// Writes a line of JSON. Hidden characters in its strings are escaped.
    pub fn write_json(&mut self, json: &str) -> io::Result<()> {
        self.write_raw(&harmless_json(json))?;
        self.write_raw("\n")
    }

    /// Writes text, escaped to one line.
    pub fn write_text(&mut self, text: &str) -> io::Result<()> {
        self.write_styled(Style::Plain, text)
    }

    /// Writes text as a line, escaped.
    pub fn write_line(&mut self, text: &str) -> io::Result<()> {
        self.write_styled_line(Style::Plain, text)
    }

    /// Writes text in a style, escaped to one line.
    pub fn write_styled(&mut self, style: Style, text: &str) -> io::Result<()> {
        self.write_harmless(style, &one_line(text))
    }

    /// Writes text as a line in a style, escaped.
    pub fn write_styled_line(&mut self, style: Style, text: &str) -> io::Result<()> {
        self.write_styled(style, text)?;
        self.write_raw("\n")
    }

    /// Writes a path that the user named as a line, unchanged, because scripts read it.
    pub fn write_path(&mut self, path: &Path) -> io::Result<()> {
        self.write_raw(&format!("{}\n", path.display()))
    }

    /// Writes a line of a file or a result, escaped except for its tabs. A forged line break must not start a new line.
    pub fn write_content_line(&mut self, style: Style, text: &str) -> io::Result<()> {
        self.write_harmless(style, &escape_hidden(&text.replace('\n', "\\n")))?;
        self.write_raw("\n")
    }

    fn write_harmless(&mut self, style: Style, text: &str) -> io::Result<()> {
        if !self.colour || style == Style::Plain {
            return self.write_raw(text);
        }
        self.write_raw(style.code())?;
        self.write_raw(text)?;
        self.write_raw("\x1b[0m")
    }

    /// Flushes the buffer.
    pub fn finish(&mut self) -> io::Result<()> {
        let flushed = self.sink.flush();
        self.accept_closed_pipe(flushed)
    }

    /// Fails if the reader has closed the pipe. Commands that only print, possibly without end, stop then.
    ///
    /// # Errors
    /// Fails with [`io::ErrorKind::BrokenPipe`].
    pub fn ensure_open(&self) -> io::Result<()> {
        if self.is_closed { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }

    fn accept_closed_pipe(&mut self, written: io::Result<()>) -> io::Result<()> {
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.is_closed = true;
                Ok(())
            }
            written => written,
        }
    }
}

/// A cell of a table: pieces of harmless text with their styles.
pub type Cell = Vec<(Style, String)>;

/// Builds a cell of foreign text.
pub fn cell(style: Style, text: &str) -> Cell {
    vec![(style, one_line(text).into_owned())]
}

/// Prints rows under headings, with the last cell cut so that a row has at most `width` columns.
pub fn print_table<const N: usize>(
    headings: [&str; N],
    rows: Vec<[Cell; N]>,
    width: Option<usize>,
    out: &mut Output,
) -> io::Result<()> {
    let headings = headings.map(|heading| vec![(Style::Bold, heading.to_owned())]);
    let rows: Vec<_> = [headings].into_iter().chain(rows).collect();
    print_rows(&rows, width, out)
}

/// Prints rows like [`print_table`], without headings.
pub fn print_rows<const N: usize>(rows: &[[Cell; N]], width: Option<usize>, out: &mut Output) -> io::Result<()> {
    /// The minimum width of the last cell.
    const MIN_LAST_CELL_COLUMNS: usize = 20;
    let cell_width = |cell: &Cell| cell.iter().map(|(_, text)| columns(text)).sum::<usize>();
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell_width(cell).max(*width);
        }
    }
    let used: usize = widths.iter().rev().skip(1).map(|width| width + 2).sum();
    let last_width = width.map_or(usize::MAX, |all| all.saturating_sub(used).max(MIN_LAST_CELL_COLUMNS));
    for row in rows {
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            let is_last = column + 1 == N;
            let mut remaining = if is_last { last_width } else { usize::MAX };
            for (style, text) in cell {
                out.write_harmless(*style, &cut(text, remaining))?;
                remaining = remaining.saturating_sub(columns(text));
            }
            if !is_last {
                out.write_raw(&" ".repeat(width + 2 - cell_width(cell)))?;
            }
        }
        out.write_line("")?;
    }
    Ok(())
}

/// Escapes foreign text to one line: hidden characters become visible, line breaks and tabs become `\n` and `\t`.
pub fn one_line(text: &str) -> Cow<'_, str> {
    match escape_hidden(text) {
        Cow::Borrowed(text) if !text.contains(['\n', '\t']) => Cow::Borrowed(text),
        text => Cow::Owned(text.replace('\n', "\\n").replace('\t', "\\t")),
    }
}

/// Formats a tool as `server / tool`, without the server's prefix in the tool's name.
pub fn format_tool(server: &str, tool: &str) -> String {
    let own_name = tool.strip_prefix(server).and_then(|rest| rest.strip_prefix("__")).unwrap_or(tool);
    format!("{server} / {own_name}")
}

/// Escapes JSON so that both programs and people can read it: hidden characters in strings become `\u` escapes, which
/// mean the same.
pub fn harmless_json(json: &str) -> Cow<'_, str> {
    if !json.chars().any(is_hidden) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len() + 32);
    for c in json.chars() {
        // Outside of strings, `\r` is the only hidden character that JSON allows, as white space.
        if c == '\r' {
            continue;
        }
        if is_hidden(c) {
            let mut units = [0; 2];
            out.extend(c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// Cuts a text to `columns` columns, with `…` at the end of a text that was cut.
pub fn cut(text: &str, columns: usize) -> Cow<'_, str> {
    cut_with(text, columns, "…")
}

/// Cuts a text like [`cut`], with an ellipsis of one column.
pub fn cut_with<'a>(text: &'a str, columns: usize, ellipsis: &str) -> Cow<'a, str> {
    let mut width = 0;
    let mut end = 0;
    for (at, c) in text.char_indices() {
        let next_width = width + char_columns(c);
        if next_width > columns {
            return Cow::Owned(format!("{}{ellipsis}", text.get(..end).unwrap_or_default()));
        }
        width = next_width;
        if width < columns {
            end = at + c.len_utf8();
        }
    }
    Cow::Borrowed(text)
}

/// Returns the columns that a text takes.
pub fn columns(text: &str) -> usize {
    text.chars().map(char_columns).sum()
}

/// Returns the columns that a character takes.
pub fn char_columns(c: char) -> usize {
    c.width().unwrap_or(0)
}

/// Prints an error on stderr, and ignores a closed stderr.
pub fn print_error(message: &str) {
    let _ = writeln!(io::stderr().lock(), "countersign: {message}");
}

/// Prints a note for the user on stderr, while the result goes to stdout.
pub fn print_note(message: &str) {
    let _ = writeln!(io::stderr().lock(), "{message}");
}

/// Returns `true` if a person is there to be asked for confirmation. `operation` names an operation that must be confirmed:
/// where nobody can be asked, it needs --yes.
///
/// # Errors
/// Fails if the operation lacks --yes and nobody can be asked.
pub fn should_ask(json: bool, yes: bool, operation: Option<&str>) -> Result<bool, Failure> {
    let asks = !json && !yes && io::stdin().is_terminal() && io::stdout().is_terminal();
    if let Some(operation) = operation.filter(|_| !asks && !yes) {
        let message = format!("there is no terminal to ask on, so {operation} needs --yes");
        return Err(Failure::new(Exit::Usage, message));
    }
    Ok(asks)
}

/// Asks on the terminal; anything but yes means no, which is confirmed with a note. `verb` names what --yes would do without
/// asking.
///
/// # Errors
/// Fails if the answer cannot be read.
pub fn confirm(question: &str, verb: &str, refusal_note: &str) -> Result<bool, Failure> {
    let answer = read_answer(&format!("{question} [y/N] ")).map_err(|error| {
        let message = format!("your answer cannot be read: {error}; use --yes to {verb} without being asked");
        Failure::new(Exit::Failed, message)
    })?;
    let is_confirmed = matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes");
    if !is_confirmed {
        print_note(refusal_note);
    }
    Ok(is_confirmed)
}

/// Asks on the terminal, and returns the line of the answer.
///
/// # Errors
/// Those of stdin.
pub fn read_answer(question: &str) -> io::Result<String> {
    let mut stderr = io::stderr().lock();
    let _ = write!(stderr, "{question}");
    let _ = stderr.flush();
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    Ok(line)
}

/// Breaks JSON into indented lines and changes nothing else: numbers keep all digits and strings their escapes, as they
/// will be sent. Text that is not JSON is returned unchanged.
pub fn indented(json: &str) -> String {
    if serde_json::from_str::<&RawValue>(json).is_err() {
        return json.to_owned();
    }
    let mut out = String::with_capacity(json.len() * 2);
    let (mut depth, mut opened) = (0_usize, false);
    for token in tokens(json) {
        let closes = matches!(token, Token::Close(_));
        depth -= usize::from(closes);
        // A line begins after an opening and before a closing brace, unless nothing is between them, and after a comma.
        if opened != closes || out.ends_with(',') {
            out.push('\n');
            out.extend(std::iter::repeat_n("  ", depth.min(40)));
        }
        opened = matches!(token, Token::Open(_));
        match token {
            Token::Open(brace) | Token::Close(brace) => out.push(brace),
            Token::Key(key) => out.extend([key, ": "]),
            Token::String(text) | Token::Scalar(text) => out.push_str(text),
            Token::Comma => out.push(','),
        }
        depth += usize::from(opened);
    }
    out
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, rc::Rc};

    use super::*;

    #[derive(Clone, Default)]
    pub(super) struct SharedBuffer(Rc<RefCell<Vec<u8>>>);

    impl Write for SharedBuffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.borrow_mut().write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Output {
        /// Writes to memory, for tests.
        pub fn memory(colour: bool) -> Self {
            let memory = SharedBuffer::default();
            let sink = Box::new(memory.clone());
            Self { sink, memory, is_closed: false, colour, is_terminal: false, width: None }
        }

        /// Returns the text that was written to memory.
        pub fn contents(&self) -> String {
            String::from_utf8_lossy(&self.memory.0.borrow()).into_owned()
        }
    }

    #[test]
    fn texts_are_cut_to_columns() {
        assert_eq!(cut("hello", 5), "hello");
        assert_eq!(cut("hello", 4), "hel…");
        assert_eq!(cut("漢字漢字", 5), "漢字…");
        assert_eq!(cut("漢字", 3), "漢…");
        assert_eq!(cut("", 0), "");
        assert_eq!(cut("a", 0), "…");
        for n in 1..12 {
            assert!(columns(&cut("a漢b🎉c漢d", n)) <= n, "{n}");
        }
    }

    #[test]
    fn agent_text_stays_on_one_line() {
        assert_eq!(one_line("a\nb\tc\u{202e}\u{1b}[2J"), "a\\nb\\tc\\u{202e}\\u{1b}[2J");
        assert!(matches!(one_line("plain"), Cow::Borrowed(_)));
    }

    #[test]
    fn results_are_escaped_and_paths_are_not() {
        let mut out = Output::memory(false);
        out.write_line("a\u{200c}\tb\n+ forged").unwrap();
        out.write_content_line(Style::Plain, "a\u{200c}\tb\n+ forged").unwrap();
        out.write_path(Path::new("a\u{200c}.db")).unwrap();
        let lines = ["a\\u{200c}\\tb\\n+ forged", "a\\u{200c}\tb\\n+ forged", "a\u{200c}.db"];
        assert_eq!(out.contents().lines().collect::<Vec<_>>(), lines);
    }

    #[test]
    fn harmless_json_escapes_hidden_characters() {
        let json = serde_json::json!({"a\u{202e}": "x\u{200b}\u{7f}\u{e0041}\n\u{1b}y", "ä": 1}).to_string();
        let shown = harmless_json(&format!("{json}\r")).into_owned();
        assert!(shown.contains(r"a\u202e") && shown.contains(r"\u200b\u007f\udb40\udc41"), "{shown}");
        assert!(!shown.chars().any(is_hidden) && shown.contains('ä'));
        let (a, b): (serde_json::Value, serde_json::Value) =
            (serde_json::from_str(&shown).unwrap(), serde_json::from_str(&json).unwrap());
        assert_eq!(a, b);
        assert!(matches!(harmless_json("{\n}"), Cow::Borrowed(_)));
    }

    #[test]
    fn indenting_changes_only_white_space() {
        let raw = r#" {"a":[1,{"b":"x,y:{\"\\"}], "n": 12345678901234567890123.10, "e": {}, "l": [ ] }"#;
        let expected = r#"{
  "a": [
    1,
    {
      "b": "x,y:{\"\\"
    }
  ],
  "n": 12345678901234567890123.10,
  "e": {},
  "l": []
}"#;
        assert_eq!(indented(raw), expected);
        for not_json in ["", "\"", "\"\\", "}}}", "[[["] {
            assert_eq!(indented(not_json), not_json);
        }
    }

    #[test]
    fn colour_is_written_only_when_enabled() {
        let mut out = Output::memory(false);
        out.write_styled(Style::Red, "x").unwrap();
        assert_eq!(out.contents(), "x");
        let mut out = Output::memory(true);
        out.write_styled(Style::Red, "x").unwrap();
        assert_eq!(out.contents(), "\x1b[31mx\x1b[0m");
    }
}
