//! `changes edit`: replaces the arguments of a change, from the command line, a file or an editor.

use std::io::IsTerminal;

use serde_json::value::RawValue;

use super::{
    edit_body,
    editor::{EditorFile, MAX_FILE_BYTES, chosen_editor},
    ensure_version, render, with_conflict_hint,
};
use crate::{
    args::changes::EditArgs,
    client::{Client, ResponseBody},
    exit::{Exit, Failure},
    output::{Output, Style, indented, one_line, print_note},
    read_input,
};
use countersign_domain::changes::Change;

pub async fn run(client: &Client, args: &EditArgs, out: &mut Output) -> Result<Exit, Failure> {
    let change = client.get_change(&args.id).await?;
    ensure_version(&change, args.version)?;
    if !change.state.awaits_decision() {
        let message = format!("the change is {}: there is nothing to edit", change.state.as_str());
        return Err(Failure::new(Exit::Conflict, message));
    }
    let mut draft = None;
    let text = match (&args.arguments, &args.file) {
        (Some(text), _) => text.clone(),
        (None, Some(file)) => read_input(file, MAX_FILE_BYTES)
            .map_err(|error| Failure::new(Exit::Usage, format!("{} cannot be read: {error}", file.display())))?,
        (None, None) => {
            if chosen_editor().is_none() && !std::io::stdin().is_terminal() {
                let message = "there is no terminal to edit on; give the new arguments with --arguments or --file";
                return Err(Failure::new(Exit::Usage, message));
            }
            let before = indented(change.arguments.get());
            let editor_failure = |error| Failure::new(Exit::Failed, format!("the editor: {error}; nothing was edited"));
            let file = EditorFile::new(&before).map_err(editor_failure)?;
            let after = file.edit().await.map_err(editor_failure)?;
            if after.trim() == before.trim() {
                print_note("Nothing was edited.");
                return Ok(Exit::Failed);
            }
            draft = Some(file);
            after
        }
    };
    let answer = send(client, &change, args, &text).await.map_err(|mut failure| {
        if let Some(draft) = draft {
            // The file is kept, so that a syntax error does not discard the user's text.
            let path = draft.keep();
            let retry_command = format!("countersign changes edit {} -f {}", one_line(&change.id), path.display());
            failure.message =
                format!("{}; what you wrote is kept: `{retry_command}`", failure.message.trim_end_matches('.'));
        }
        failure
    })?;
    client.print_change(&answer, out, |after, out| {
        render::print_change(&after, jiff::Timestamp::now(), out)?;
        out.write_line("")?;
        let text = "Edited; what it would do now is shown above. Nobody has approved this yet.";
        Ok(out.write_styled_line(Style::Green, text)?)
    })
}

async fn send(client: &Client, change: &Change, args: &EditArgs, text: &str) -> Result<ResponseBody, Failure> {
    let arguments: &RawValue = serde_json::from_str(text.trim())
        .map_err(|error| Failure::new(Exit::Usage, format!("the arguments are not JSON: {error}")))?;
    if !arguments.get().starts_with('{') {
        return Err(Failure::new(Exit::Usage, "the arguments must be a JSON object"));
    }
    let body = edit_body(arguments.get(), change.version, args.comment.as_deref());
    client
        .post_text(&["changes", &change.id, "edit"], body)
        .await
        .map_err(|failure| with_conflict_hint(failure, &change.id))
}
