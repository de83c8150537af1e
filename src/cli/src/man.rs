//! `man`: writes the manual pages, which packages contain.

use std::{
    fs,
    io::{self, Write},
    path::Path,
};

use clap::{Command, CommandFactory};
use clap_mangen::{
    Man,
    roff::{Roff, roman},
};

use super::{
    args::Cli,
    exit::{Exit, Failure},
    version::COMMIT_DATE,
};

/// The section of commands in the manual.
const SECTION: &str = "1";

/// Writes one page for the program and one for each of its commands.
pub fn run(folder: &Path) -> Result<Exit, Failure> {
    let mut program = Cli::command().disable_help_subcommand(true);
    program.build();
    fs::create_dir_all(folder).and_then(|()| write_pages(&program, None, folder)).map_err(|error| {
        Failure::new(Exit::Unavailable, format!("the pages cannot be written to {}: {error}", folder.display()))
    })?;
    Ok(Exit::Ok)
}

fn write_pages(command: &Command, parent: Option<&str>, folder: &Path) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let mut page = Vec::new();
    render(command, name, parent, &mut page)?;
    fs::write(folder.join(format!("{name}.{SECTION}")), page)?;
    visible_commands(command).try_for_each(|subcommand| write_pages(subcommand, Some(name), folder))
}

fn visible_commands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set())
}

fn render(command: &Command, name: &str, parent: Option<&str>, page: &mut Vec<u8>) -> io::Result<()> {
    let man = Man::new(command.clone())
        .title(name.to_uppercase())
        .section(SECTION)
        .date(COMMIT_DATE)
        .source(concat!("countersign ", env!("CARGO_PKG_VERSION")))
        .manual("Countersign");
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        let mut options = Vec::new();
        man.render_options_section(&mut options)?;
        page.write_all(single_breaks(&String::from_utf8_lossy(&options)).as_bytes())?;
    }
    if visible_commands(command).next().is_some() {
        man.render_subcommands_section(page)?;
    }
    let mut roff = Roff::new();
    if let Some(help) = command.get_after_long_help() {
        render_help(&help.to_string(), &mut roff);
    }
    if let Some(parent) = parent {
        roff.control("SH", ["SEE ALSO"]);
        roff.text([roman(format!("{parent}({SECTION})"))]);
    }
    roff.to_writer(page)?;
    page.flush()
}

/// Replaces the breaks before a list of possible values, which clap_mangen doubles and `mandoc -T lint` reports.
fn single_breaks(options: &str) -> String {
    options.replace("\n.br\n\n.br\n", "\n.sp\n").replace("\n\n.br\n", "\n")
}

/// Renders the text after the options: a line such as `Examples:` begins a section, whose lines stay as they are; other
/// paragraphs are filled.
fn render_help(help: &str, roff: &mut Roff) {
    for paragraph in help.split("\n\n").map(str::trim_end).filter(|paragraph| !paragraph.is_empty()) {
        let (first, rest) = paragraph.split_once('\n').unwrap_or((paragraph, ""));
        match first.strip_suffix(':') {
            Some(heading) if rest.starts_with(' ') => {
                roff.control("SH", [heading.to_uppercase().as_str()]);
                roff.control("nf", []);
                for line in rest.lines() {
                    roff.text([roman(line)]);
                }
                roff.control("fi", []);
            }
            _ => {
                roff.control("PP", []);
                for line in paragraph.lines() {
                    roff.text([roman(line.trim_start())]);
                }
            }
        }
    }
}
