//! `servers import`: adds the servers of desktop clients on this machine to the configuration file.

mod clients;

use self::clients::{FoundServer, find_servers};
use super::edit::{ConfigEditor, Edit};
use crate::{
    args::{ConnectArgs, servers::ImportArgs},
    exit::{Exit, Failure},
    output::{Output, Style, cell, one_line, print_note, print_table, read_answer, should_ask},
};
use countersign_config::edit::{Settings, hidden::hide_secrets, server_names, words_of};

pub(super) fn import(args: &ImportArgs, connect: &ConnectArgs, out: &mut Output) -> Result<Exit, Failure> {
    let editor = ConfigEditor::open(connect)?;
    let known_names =
        server_names(editor.file.text()).map_err(|error| Failure::new(Exit::Config, one_line(&error.to_string())))?;
    let (found, notes) = find_servers(&editor.env, args.from);
    for note in notes {
        print_note(&one_line(&note));
    }
    let (present, new): (Vec<FoundServer>, Vec<FoundServer>) = found
        .into_iter()
        .filter(|found| !found.server.is_gateway())
        .partition(|found| known_names.contains(&found.server.name));
    for found in &present {
        print_note(&format!("{} of {} is in the file already.", one_line(&found.server.name), found.client));
    }
    if new.is_empty() {
        print_note("There is nothing to import.");
        return Ok(Exit::Ok);
    }
    let asks = should_ask(connect.json, args.yes, Some("importing servers"))?;
    let indexes = match &args.names[..] {
        [] if !asks => return Err(Failure::new(Exit::Usage, "name the servers to import")),
        [] => {
            print_choices(&new, out)?;
            choose(&new)?
        }
        names => find_chosen(&new, names)?,
    };
    if indexes.is_empty() {
        print_note("Nothing was changed.");
        return Ok(Exit::Failed);
    }
    let servers = indexes.into_iter().filter_map(|index| new.get(index)).map(|found| found.server.clone());
    let edit = Edit::for_new_servers(&editor, servers.collect());
    editor.save(&edit, asks, out)
}

fn print_choices(found: &[FoundServer], out: &mut Output) -> Result<(), Failure> {
    let row = |(number, found): (usize, &FoundServer)| {
        [
            cell(Style::Bold, &(number + 1).to_string()),
            cell(Style::Plain, &found.server.name),
            cell(Style::Plain, &found.client),
            cell(Style::Dim, &describe(&found.server.settings)),
        ]
    };
    let rows = found.iter().enumerate().map(row).collect();
    print_table(["", "NAME", "CLIENT", "COMMAND OR ADDRESS"], rows, out.width, out)?;
    Ok(out.finish()?)
}

/// Returns the command or address of a server without secrets.
fn describe(settings: &Settings) -> String {
    let hidden = hide_secrets(settings);
    let texts =
        hidden.iter().filter(|(key, _)| ["command", "args", "url", "httpUrl", "serverUrl"].contains(&key.as_str()));
    // Secrets are hidden only in texts and in lists of texts.
    texts.flat_map(|(_, value)| words_of(value)).collect::<Vec<_>>().join(" ")
}

/// Asks which servers to add, and returns their positions.
fn choose(found: &[FoundServer]) -> Result<Vec<usize>, Failure> {
    let answer = read_answer("Which ones? Numbers or names, or all: ")
        .map_err(|error| Failure::new(Exit::Failed, format!("your answer cannot be read: {error}")))?;
    let words: Vec<String> =
        answer.split([',', ' ', '\n', '\t']).filter(|word| !word.is_empty()).map(str::to_owned).collect();
    if words.len() == 1 && words.first().is_some_and(|word| word.eq_ignore_ascii_case("all")) {
        return Ok((0..found.len()).collect());
    }
    find_chosen(found, &words)
}

/// Returns the positions of the servers with these names or numbers.
fn find_chosen(found: &[FoundServer], words: &[String]) -> Result<Vec<usize>, Failure> {
    let mut indexes = Vec::new();
    for word in words {
        let by_number = word.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
        let by_number = by_number.filter(|index| *index < found.len());
        let by_name = || found.iter().position(|found| found.server.name == *word);
        // The number comes first, because a server may have the number of another one as its name.
        let index = by_number.or_else(by_name).ok_or_else(|| {
            let names: Vec<String> = found.iter().map(|found| one_line(&found.server.name).into_owned()).collect();
            Failure::new(Exit::NotFound, format!("no client has {}; there are {}", one_line(word), names.join(", ")))
        })?;
        if !indexes.contains(&index) {
            indexes.push(index);
        }
    }
    Ok(indexes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn description_has_no_texts_of_nested_values() {
        let settings = serde_json::json!({ "command": { "path": "x", "env": { "KEY": "s3cret" } }, "url": "https://a.example/mcp" });
        assert_eq!(describe(settings.as_object().unwrap()), "https://a.example/mcp");
    }
}
