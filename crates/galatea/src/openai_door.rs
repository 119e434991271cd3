//! The endpoint for OpenAI clients.

use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use galatea_door::tls::ApplicationProtocol;
use galatea_door::{DoorOptions, RunningDoor};
use galatea_http::{AdapterSource, ChatTemplate, HttpOptions, OpenAiOptions};
use galatea_infer::Status;

use crate::certificates::Certificates;
use crate::doors::{DoorSetup, failed};
use crate::error_paths::DoorServices;
use crate::flags::tls;
use crate::hub_cache::tokenizer_folder;
use crate::openai_adapters::{adapters, open_tensors};

const NAME: &str = "OpenAI service";

/// The maximum length of a tokenizer file.
const FILE_BYTES_MAX: u64 = 64 << 20;

impl DoorSetup<'_> {
    /// Opens the endpoint, if it is enabled. It uses the certificates of the HTTP endpoint.
    pub(crate) fn openai(
        &self,
        connections: DoorOptions,
        certificates: &mut Vec<Certificates>,
    ) -> Result<Option<RunningDoor>, Status> {
        let settings = &self.settings.openai;
        if !settings.door.allow {
            return Ok(None);
        }
        let mut door = settings.door.clone();
        door.tls = self.settings.http.tls.clone();
        let tls = self.tls(NAME, &door, tls::HTTP, ApplicationProtocol::Http1, certificates)?;
        let mut options = self.openai_options(connections)?;
        options.http.tls = tls;
        let start = |socket: TcpListener| {
            let DoorServices { service, control } = self.served.clone();
            galatea_http::start_openai(self.workers.handles(), socket, service, control, options)
        };
        self.start(NAME, "OpenAI Service", &door.address, &door, start)
    }
}

impl DoorSetup<'_> {
    /// The settings of OpenAI's API, without TLS.
    pub(crate) fn openai_options(&self, connections: DoorOptions) -> Result<OpenAiOptions, Status> {
        let settings = &self.settings.openai;
        let refused = |reason| failed(NAME, &Status::invalid_argument(reason));
        let tokenizer = settings.tokenizer.as_deref();
        let tokenizer = tokenizer.map(|name| tokenizer_folder(name, self.hub_cache.as_deref()));
        let tokenizer = tokenizer.transpose().map_err(refused)?;
        let template = template(tokenizer.as_deref(), settings.chat_template.as_deref());
        let template = template.map_err(refused)?;
        let gate = self.gate(&settings.rules);
        Ok(OpenAiOptions {
            http: HttpOptions { gate, ..self.http_options(connections) },
            template: template.map(Arc::new),
            format: settings.format,
            tokens_default: settings.tokens_default.into(),
            adapters: self.adapters(),
            tool_format: settings.tool_format,
            tool_chars_max: settings.tool_chars_max,
            has_model_control: self.settings.control_mode.allows_orders(),
            metrics: self.metrics_renderer(),
            meters: self.meters.clone(),
        })
    }

    /// The adapters of models, if clients can select one.
    fn adapters(&self) -> Option<AdapterSource> {
        let (repositories, format) =
            (self.settings.model_repositories.clone(), self.settings.openai.format);
        let symlinks = self.settings.repository_symlinks;
        let separator = self.settings.openai.lora_separator.clone()?;
        let read = move |model: &str| adapters(&repositories, symlinks, model, format);
        let open = move |name: &str, folder: &Path| open_tensors(symlinks, name, folder);
        Some(AdapterSource { separator, read: Arc::new(read), open: Arc::new(open) })
    }
}

/// Reads the chat template from its own file or from the tokenizer.
fn template(
    tokenizer: Option<&Path>,
    template: Option<&Path>,
) -> Result<Option<ChatTemplate>, String> {
    if tokenizer.is_none() && template.is_none() {
        return Ok(None);
    }
    let config = tokenizer.map(|folder| read(&folder.join("tokenizer_config.json"))).transpose()?;
    let beside = tokenizer.map(|folder| folder.join("chat_template.jinja"));
    let own = match (template, &beside) {
        (Some(file), _) => Some(read(file)?),
        (None, Some(file)) if file.exists() => Some(read(file)?),
        (None, _) => None,
    };
    let read = ChatTemplate::new(config.as_deref(), own.as_deref());
    let place = template.or(tokenizer).unwrap_or(Path::new("")).display();
    read.map(Some).map_err(|error| format!("the chat template of '{place}' can't be used: {error}"))
}

fn read(file: &Path) -> Result<String, String> {
    let failed = |reason: String| format!("'{}' can't be read: {reason}", file.display());
    let length = fs::metadata(file).map_err(|error| match error.kind() {
        ErrorKind::NotFound => failed(String::from("there is no such file")),
        _ => failed(error.to_string()),
    });
    if length?.len() > FILE_BYTES_MAX {
        return Err(failed(String::from("it is too long")));
    }
    fs::read_to_string(file).map_err(|error| failed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_comes_from_a_file_or_a_folder() {
        let folder = std::env::temp_dir().join(format!("galatea-openai-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, text: &str| {
            let file = folder.join(name);
            fs::write(&file, text).unwrap();
            file
        };
        assert!(template(None, None).unwrap().is_none());
        let error = |tokenizer, file| template(tokenizer, file).unwrap_err();
        assert!(error(Some(&folder), None).ends_with("there is no such file"));
        write("tokenizer_config.json", "{}");
        assert!(error(Some(&folder), None).ends_with("there is no chat template"));
        write("chat_template.jinja", "x");
        assert!(template(Some(&folder), None).unwrap().is_some());
        let broken = write("broken.jinja", "{% if %}");
        assert!(error(Some(&folder), Some(&broken)).contains("malformed"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
