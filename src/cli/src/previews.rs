//! `previews test`: shows what a reviewer would see of a call, without proposing it.

use serde::Deserialize;

use super::{
    args::{GatewayCommands, previews::PreviewsCommand},
    changes::render,
    client,
    exit::{Exit, Failure},
    output::{Output, Style},
    policy::read_arguments,
};
use countersign_domain::changes::{Diff, Operation, PreviewNote, Target};
use countersign_rest::previews::PreviewTestRequest;

#[derive(Deserialize)]
struct CallPreview {
    operation: Operation,
    target: Target,
    summary: String,
    preview: PreviewNote,
    diff: Diff,
}

pub fn run(args: &GatewayCommands<PreviewsCommand>, out: &mut Output) -> Result<Exit, Failure> {
    let PreviewsCommand::Test(test) = &args.command;
    let arguments = Some(read_arguments(test.arguments.as_deref())?);
    let request = PreviewTestRequest { server: test.server.clone(), tool: test.tool.clone(), arguments };
    let body = serde_json::to_string(&request).map_err(|error| Failure::new(Exit::Usage, error))?;
    let answer =
        client::run(&args.connect, async |client| client.post_text(&["previews", "test"], body).await?.json_line())?;
    if args.connect.json {
        out.write_json(&answer)?;
        return Ok(Exit::Ok);
    }
    let preview: CallPreview = serde_json::from_str(&answer).map_err(|error| Failure::new(Exit::Internal, error))?;
    out.write_styled_line(Style::Bold, &preview.summary)?;
    out.write_styled(render::operation_style(preview.operation), preview.operation.as_str())?;
    out.write_line(&format!(" {}  {}", preview.target.entity_type, preview.target.label))?;
    for (style, text) in render::preview_notes(&preview.preview) {
        out.write_styled_line(style, &text)?;
    }
    render::print_diff(&preview.diff, out)?;
    Ok(Exit::Ok)
}
