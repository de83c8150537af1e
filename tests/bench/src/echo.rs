//! A fast upstream: an MCP server of one era that answers every tool call with its text.

use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use anyhow::Result;
use clap::ValueEnum;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Era {
    Legacy,
    Modern,
}

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    method: &'a str,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Call<'a> {
    #[serde(borrow)]
    arguments: Arguments<'a>,
}

#[derive(Deserialize)]
struct Arguments<'a> {
    #[serde(borrow)]
    text: &'a RawValue,
}

struct Echo {
    era: Era,
    tools: String,
}

fn tools(count: usize) -> String {
    let schema = json!({
        "type": "object", "properties": {"text": {"type": "string", "description": "What comes back"}}, "required": ["text"],
    });
    let tools: Vec<Value> = (0..count)
        .map(|number| {
            let name = if number == 0 { "echo".to_owned() } else { format!("echo_{number}") };
            json!({"name": name, "description": "Answers with what it was given", "inputSchema": schema})
        })
        .collect();
    Value::from(tools).to_string()
}

impl Echo {
    fn result(&self, request: &Request<'_>) -> Option<String> {
        let rest = match self.era {
            Era::Legacy => "",
            Era::Modern => r#","resultType":"complete""#,
        };
        let cached = match self.era {
            Era::Legacy => "",
            Era::Modern => r#","ttlMs":600000,"cacheScope":"public""#,
        };
        Some(match (request.method, self.era) {
            ("tools/call", _) => {
                let call: Call<'_> = serde_json::from_str(request.params?.get()).ok()?;
                format!(r#"{{"content":[{{"type":"text","text":{}}}]{rest}}}"#, call.arguments.text.get())
            }
            ("tools/list", _) => format!(r#"{{"tools":{}{rest}{cached}}}"#, self.tools),
            ("server/discover", Era::Modern) => format!(
                r#"{{"supportedVersions":["2026-07-28"],"capabilities":{{"tools":{{}}}}{rest}{cached}}}"#
            ),
            ("initialize", Era::Legacy) => r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"echo","version":"1"}}"#.to_owned(),
            ("ping", Era::Legacy) => "{}".to_owned(),
            _ => return None,
        })
    }
}

async fn post(body: web::Bytes, echo: web::Data<Echo>) -> HttpResponse {
    let Ok(request) = serde_json::from_slice::<Request<'_>>(&body) else { return HttpResponse::BadRequest().finish() };
    let Some(id) = request.id else { return HttpResponse::Accepted().finish() };
    let mut response = HttpResponse::Ok();
    if request.method == "initialize" {
        response.insert_header(("Mcp-Session-Id", "echo"));
    }
    response.content_type("application/json");
    match echo.result(&request) {
        Some(result) => response.body(format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, id.get())),
        None => HttpResponse::NotFound().content_type("application/json").body(format!(
            r#"{{"jsonrpc":"2.0","id":{},"error":{{"code":-32601,"message":"Method not found"}}}}"#,
            id.get()
        )),
    }
}

async fn method_not_allowed(_: HttpRequest) -> HttpResponse {
    HttpResponse::MethodNotAllowed().finish()
}

/// Serves until it is killed.
pub fn serve(port: u16, workers: usize, era: Era, count: usize) -> Result<()> {
    let tools = tools(count);
    actix_web::rt::System::new().block_on(async move {
        HttpServer::new(move || {
            App::new()
                .app_data(web::Data::new(Echo { era, tools: tools.clone() }))
                .service(web::resource("/mcp").route(web::post().to(post)).default_service(web::to(method_not_allowed)))
                .default_service(web::to(|| async { HttpResponse::Ok().finish() }))
        })
        .workers(workers)
        // Longer than a connection is idle during other measurements.
        .keep_alive(std::time::Duration::from_secs(75))
        .bind(("127.0.0.1", port))?
        .run()
        .await
    })?;
    Ok(())
}
