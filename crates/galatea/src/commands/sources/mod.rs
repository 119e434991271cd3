//! The arguments of `galatea serve` and `galatea check`: model files, model directories, or
//! repositories.

mod external;
mod forest;
mod gguf;
mod openvino;
mod pytorch;
mod tensorflow;
mod text;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use galatea_forest::ModelFormat;
use galatea_repository::{SymlinkRepository, is_remote};

use self::openvino::OpenVinoFormat;

/// A source: an argument, or a file in a directory that is an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// An ONNX model file.
    Onnx(PathBuf),
    /// A Python model file.
    Python(PathBuf),
    /// An OpenVINO model file.
    OpenVino(PathBuf, OpenVinoFormat),
    /// A `SavedModel` directory.
    SavedModel(PathBuf),
    /// The file of a compiled PyTorch model, with its configuration.
    Compiled(PathBuf, String),
    /// A tree-ensemble file.
    Forest(PathBuf, ModelFormat),
    /// A language model in GGUF format.
    Gguf(PathBuf),
    /// The directory of a text model, as its makers publish it.
    Text(PathBuf),
    /// A model directory, with its versions.
    Model(PathBuf),
    /// A model repository, which may be in a bucket.
    Repository(PathBuf),
}

impl Source {
    fn path(&self) -> &Path {
        match self {
            Self::Onnx(path)
            | Self::Python(path)
            | Self::OpenVino(path, _)
            | Self::SavedModel(path)
            | Self::Compiled(path, _)
            | Self::Forest(path, _)
            | Self::Gguf(path)
            | Self::Text(path)
            | Self::Model(path)
            | Self::Repository(path) => path,
        }
    }
}

/// The sources that these arguments refer to.
pub(super) fn find(arguments: &[String]) -> Result<Vec<Source>, String> {
    let mut sources = Vec::new();
    for argument in arguments {
        sources.extend(find_one(argument)?);
    }
    Ok(sources)
}

/// Like `find`, but also accepts missing paths and repositories without a valid model, because the
/// caller detects these when it opens them. A repository is only served as such, because its server
/// ignores any files next to its models.
pub(super) fn find_for_check(arguments: &[String]) -> Result<Vec<Source>, String> {
    let mut sources = Vec::new();
    for argument in arguments {
        let path = PathBuf::from(argument);
        let is_file = fs::metadata(&path).is_ok_and(|found| !found.is_dir());
        match find_one(argument) {
            Ok(found) if !found.contains(&Source::Repository(path.clone())) => {
                sources.extend(found);
            }
            Err(reason) if is_file => return Err(reason),
            Ok(_) | Err(_) => sources.push(Source::Repository(path)),
        }
    }
    Ok(sources)
}

fn find_one(argument: &str) -> Result<Vec<Source>, String> {
    let path = PathBuf::from(argument);
    if is_remote(argument) {
        return Ok(vec![Source::Repository(path)]);
    }
    let found = fs::metadata(&path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => format!("there is no '{argument}'"),
        _ => format!("can't read '{argument}': {error}"),
    })?;
    if !found.is_dir() {
        if pytorch::is_torch_file(&path) {
            return of_torch_file(path).map(|source| vec![source]);
        }
        let file = of_file(&path);
        return file.map(|file| vec![file]).ok_or_else(|| no_model(argument, &path));
    }
    let entries = entries(&path).map_err(|error| format!("can't read '{argument}': {error}"))?;
    if !has_config(&entries) && text::is_text_model(&path) {
        return Ok(vec![Source::Text(path)]);
    }
    if tensorflow::is_saved_model(&path) {
        return Ok(vec![Source::SavedModel(path)]);
    }
    if !has_config(&entries)
        && let Some(version) = tensorflow::newest_version(&entries)
    {
        return Ok(vec![Source::SavedModel(version)]);
    }
    if is_model(&entries) {
        return Ok(vec![Source::Model(path)]);
    }
    // In a directory with code, only the file with the default name is a model.
    let is_served = |path: &PathBuf| {
        is_onnx(path)
            || path.file_name() == Some(OsStr::new(MODEL))
            || openvino::format_of(path).is_some()
            || forest::is_served(path)
            || gguf::is_served(path)
    };
    let files = entries.iter().filter(|path| path.is_file() && is_served(path));
    let mut sources: Vec<Source> = files.filter_map(|path| of_file(path)).collect();
    let compiled = entries.iter().filter(|path| path.is_file() && pytorch::is_torch_file(path));
    sources.extend(compiled.filter_map(|path| of_torch_file(path.clone()).ok()));
    let saved = entries.iter().filter(|path| tensorflow::is_saved_model(path));
    sources.extend(saved.cloned().map(Source::SavedModel));
    let texts = entries.iter().filter(|path| text::is_text_model(path));
    sources.extend(texts.cloned().map(Source::Text));
    let has_models =
        |path: &PathBuf| path.is_dir() && self::entries(path).is_ok_and(|inside| is_model(&inside));
    if entries.iter().any(has_models) {
        sources.push(Source::Repository(path));
    }
    if sources.is_empty() {
        return Err(format!(
            "'{argument}' has no model: no .onnx file, no model.py, no file of OpenVINO or of a \
             forest, no SavedModel, no compiled model of PyTorch, no .gguf file, and no directory of \
             a model or of a text model"
        ));
    }
    Ok(sources)
}

const MODEL: &str = "model.py";

/// The file name for an ONNX model that is linked without the files next to it.
const USUAL: &str = "model.onnx";

fn of_file(path: &Path) -> Option<Source> {
    if is_onnx(path) {
        Some(Source::Onnx(path.to_owned()))
    } else if path.extension() == Some(OsStr::new("py")) {
        Some(Source::Python(path.to_owned()))
    } else if let Some(format) = openvino::format_of(path) {
        Some(Source::OpenVino(path.to_owned(), format))
    } else if let Some(directory) = tensorflow::of_file(path) {
        Some(Source::SavedModel(directory))
    } else if gguf::is_gguf(path) {
        Some(Source::Gguf(path.to_owned()))
    } else {
        forest::format_of(path).map(|format| Source::Forest(path.to_owned(), format))
    }
}

/// The model in a PyTorch file. If the file is in a repository's layout, its configuration is
/// there.
fn of_torch_file(path: PathBuf) -> Result<Source, String> {
    let absolute = std::path::absolute(&path).unwrap_or_else(|_| path.clone());
    let model = absolute.parent().filter(|version| is_number(version)).and_then(Path::parent);
    if let Some(model) = model.filter(|model| model.join("config.pbtxt").is_file()) {
        return Ok(Source::Model(model.to_owned()));
    }
    let name = name_of(&Source::Compiled(path.clone(), String::new()))?;
    pytorch::config(&path, &name).map(|config| Source::Compiled(path, config))
}

/// The error for a file that is not a model.
fn no_model(argument: &str, path: &Path) -> String {
    let ending = path.extension().and_then(OsStr::to_str).unwrap_or_default();
    if matches!(ending, "joblib" | "pickle" | "pkl") {
        return format!(
            "'{argument}' is a pickle, which is code: export the model to ONNX with skl2onnx, or a \
             forest with treelite.sklearn.import_model and serialize; a model in Python (.py) may \
             load it (docs/scikit-learn.md)"
        );
    }
    if ending == "skops" {
        return format!(
            "'{argument}' is read by scikit-learn: export the model to ONNX with skl2onnx, or a \
             forest with treelite.sklearn.import_model and serialize; a model in Python (.py) may \
             load it (docs/scikit-learn.md)"
        );
    }
    if matches!(ending, "keras" | "h5" | "hdf5") {
        return format!(
            "'{argument}' is a file of Keras: write a SavedModel with model.export, and serve its \
             directory"
        );
    }
    if tensorflow::is_graph(path) {
        return format!(
            "'{argument}' is a graph of TensorFlow, which doesn't say its inputs and outputs: save \
             it as a SavedModel, or write a configuration with the platform tensorflow_graphdef"
        );
    }
    format!(
        "'{argument}' is neither an ONNX model (.onnx) nor a model in Python (.py) nor one of OpenVINO \
         (.xml) or TensorFlow Lite (.tflite) nor one of PyTorch (.pt2) nor a forest of XGBoost (.json, \
         .ubj, .model), LightGBM (.txt) or treelite (.tl) nor a language model (.gguf)"
    )
}

fn is_onnx(path: &Path) -> bool {
    path.extension() == Some(OsStr::new("onnx"))
}

/// The paths in a directory, in sorted order.
fn entries(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path()));
    let mut paths: Vec<PathBuf> = entries.collect::<Result<_, _>>()?;
    paths.sort();
    Ok(paths)
}

/// Returns true if a directory with these entries is a model directory: it contains a
/// configuration, or a version that is not itself a model.
fn is_model(entries: &[PathBuf]) -> bool {
    let is_version = |path: &PathBuf| {
        is_number(path)
            && path.is_dir()
            && self::entries(path).is_ok_and(|inside| {
                !inside.is_empty()
                    && !has_config(&inside)
                    && !inside.iter().any(|one| is_number(one))
            })
    };
    has_config(entries) || entries.iter().any(is_version)
}

fn has_config(entries: &[PathBuf]) -> bool {
    entries.iter().any(|path| path.file_name() == Some(OsStr::new("config.pbtxt")))
}

fn is_number(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit())
}

/// The repositories for a list of sources: repositories themselves, and one repository of links for
/// all other sources.
#[derive(Debug)]
pub(super) struct Repositories {
    /// The paths of all repositories.
    pub(super) paths: Vec<PathBuf>,
    /// The targets of the links.
    pub(super) places: LinkOrigins,
    /// The repository of links, kept for as long as the server runs.
    _linked: Option<SymlinkRepository>,
}

impl Repositories {
    /// Creates links in a new directory in `parent`. `name` is the model name if there is only one
    /// source.
    pub(super) fn of(
        sources: &[Source],
        name: Option<&str>,
        parent: &Path,
    ) -> Result<Self, String> {
        let is_repository = |source: &&Source| matches!(source, Source::Repository(_));
        let mut paths: Vec<PathBuf> =
            sources.iter().filter(is_repository).map(|source| source.path().to_owned()).collect();
        let single: Vec<&Source> = sources.iter().filter(|source| !is_repository(source)).collect();
        if single.is_empty() {
            return Ok(Self { paths, places: LinkOrigins::default(), _linked: None });
        }
        let names = names(&single, name)?;
        let linked = SymlinkRepository::create(parent).map_err(|error| {
            format!("can't make a directory in '{}': {error}", parent.display())
        })?;
        let mut places = LinkOrigins::default();
        for (name, source) in names {
            link(&linked, &name, source)
                .map_err(|error| format!("can't use '{}': {error}", source.path().display()))?;
            places.add(&linked.path().join(&name), source);
        }
        places.sort();
        paths.push(linked.path().to_owned());
        Ok(Self { paths, places, _linked: Some(linked) })
    }
}

/// The links, with the paths that they represent.
#[derive(Clone, Debug, Default)]
pub(super) struct LinkOrigins(Vec<(PathBuf, PathBuf)>);

impl LinkOrigins {
    /// Adds a model by the path of its links. A path without a corresponding user file represents
    /// the source.
    fn add(&mut self, model: &Path, source: &Source) {
        let path = source.path();
        if let Source::Onnx(_)
        | Source::Python(_)
        | Source::OpenVino(..)
        | Source::SavedModel(_)
        | Source::Compiled(..)
        | Source::Text(_)
        | Source::Forest(..)
        | Source::Gguf(_) = source
        {
            let usual = match source {
                Source::Forest(_, format) => format.default_file_name(),
                Source::OpenVino(_, format) => format.linked_as().unwrap_or(USUAL),
                Source::SavedModel(_) => tensorflow::USUAL,
                Source::Compiled(..) => pytorch::USUAL,
                Source::Gguf(_) => gguf::USUAL,
                _ => USUAL,
            };
            self.0.push((model.join("1").join(usual), path.to_owned()));
            let inside = format!("{}/", model.join("1").display());
            let inside_of = if let Source::Text(path) = source { path } else { folder(path) };
            self.0.push((PathBuf::from(inside), inside_of.join("")));
            self.0.push((model.join("1"), path.to_owned()));
            self.0.push((model.join("config.pbtxt"), path.to_owned()));
        }
        self.0.push((model.to_owned(), path.to_owned()));
    }

    /// Sorts long paths before their own prefixes.
    fn sort(&mut self) {
        self.0.sort_by_key(|(link, _)| Reverse(link.as_os_str().len()));
    }

    /// Rewrites a message so that it names the files that the user passed, not the links to them.
    pub(super) fn named_in(&self, message: &str) -> String {
        self.0.iter().fold(message.to_owned(), |message, (link, place)| {
            message.replace(&link.display().to_string(), &place.display().to_string())
        })
    }
}

/// The sources by model name; all names must be different.
fn names<'a>(
    sources: &[&'a Source],
    given: Option<&str>,
) -> Result<BTreeMap<String, &'a Source>, String> {
    let mut names: BTreeMap<String, &Source> = BTreeMap::new();
    for source in sources {
        let name = given.map_or_else(|| name_of(source), |name| Ok(name.to_owned()))?;
        if let Some(other) = names.insert(name.clone(), source) {
            let (one, other) = (source.path().display(), other.path().display());
            return Err(format!(
                "'{other}' and '{one}' would both be the model '{name}': serve one of them, or \
                 rename a file"
            ));
        }
    }
    Ok(names)
}

/// A model's name: its file name without the extension, or its directory name. If a file is in a
/// version directory, as in a repository, the model is named after the model directory.
fn name_of(source: &Source) -> Result<String, String> {
    let path = std::path::absolute(source.path()).unwrap_or_else(|_| source.path().to_owned());
    let in_model = path.parent().filter(|parent| is_number(parent)).and_then(Path::parent);
    let named = match source {
        Source::Model(_) | Source::Repository(_) | Source::Text(_) => path.file_name(),
        Source::Onnx(_)
        | Source::Python(_)
        | Source::OpenVino(..)
        | Source::Compiled(..)
        | Source::Gguf(_) => match in_model.and_then(Path::file_name) {
            Some(model) if path.file_stem() == Some(OsStr::new("model")) => Some(model),
            _ => path.file_stem(),
        },
        Source::SavedModel(_) => match in_model.and_then(Path::file_name) {
            Some(model) if path.file_name() == Some(OsStr::new(tensorflow::USUAL)) => Some(model),
            _ if is_number(&path) => path.parent().and_then(Path::file_name),
            _ => tensorflow::stem(&path),
        },
        Source::Forest(..) => match in_model.and_then(Path::file_name) {
            Some(model) if forest::has_usual_name(&path) => Some(model),
            _ => path.file_stem(),
        },
    };
    let text = named.unwrap_or_default().to_string_lossy();
    // Names appear in URLs, command lines and metric labels.
    let plain =
        |one: char| if one.is_ascii_alphanumeric() || "._-".contains(one) { one } else { '_' };
    let name: String = match source {
        // The model's configuration may specify the same name.
        Source::Model(_) => text.into_owned(),
        _ => text.chars().map(plain).collect(),
    };
    galatea_repository::check_model_name(&name)
        .map(|()| name)
        .map_err(|error| format!("'{}' can't be a model: {error}", path.display()))
}

/// Adds a model.
fn link(linked: &SymlinkRepository, name: &str, source: &Source) -> std::io::Result<()> {
    let version = |backend: &str, file: &Path| {
        linked.add_single_version_model(name, folder(file), &config(backend, file))
    };
    match source {
        Source::Onnx(path) if external::has_data_beside(path)? => version("onnxruntime", path),
        Source::Onnx(path) => linked.add_single_file_model(name, path, USUAL, None),
        Source::OpenVino(path, format) => match format.linked_as() {
            Some(known_as) => {
                let config = config("openvino", Path::new(known_as));
                linked.add_single_file_model(name, path, known_as, Some(&config))
            }
            None => version("openvino", path),
        },
        Source::SavedModel(path) => {
            linked.add_single_file_model(name, path, tensorflow::USUAL, None)
        }
        Source::Forest(path, format) => {
            let config = forest::config(path, *format);
            linked.add_single_file_model(name, path, format.default_file_name(), Some(&config))
        }
        Source::Compiled(path, config) => {
            linked.add_single_file_model(name, path, pytorch::USUAL, Some(config))
        }
        Source::Gguf(path) if gguf::is_part(path) => version("llamacpp", path),
        Source::Gguf(path) => linked.add_single_file_model(name, path, gguf::USUAL, None),
        Source::Text(path) => linked.add_single_version_model(name, path, text::CONFIG),
        // Models import the files next to them.
        Source::Python(path) => version("python", path),
        Source::Model(path) | Source::Repository(path) => linked.add_model(name, path),
    }
}

fn folder(file: &Path) -> &Path {
    file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn config(backend: &str, file: &Path) -> String {
    let file = file.file_name().unwrap_or_default().to_string_lossy();
    let file = file.replace('\\', "\\\\").replace('"', "\\\"");
    format!("backend: \"{backend}\"\ndefault_model_filename: \"{file}\"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_files_and_directories() {
        let check =
            |source: Source, expected: &str| assert_eq!(name_of(&source).unwrap(), expected);
        check(Source::Onnx("/a/scale.onnx".into()), "scale");
        check(Source::Onnx("/a/two words (1).onnx".into()), "two_words__1_");
        check(Source::Onnx("/a/net.v2.onnx".into()), "net.v2");
        check(Source::Onnx("/a/net/model.onnx".into()), "model");
        check(Source::Onnx("/a/net/1/model.onnx".into()), "net");
        check(Source::Python("/a/words/12/model.py".into()), "words");
        check(Source::OpenVino("/a/net/1/model.xml".into(), OpenVinoFormat::Xml), "net");
        check(Source::Python("/a/words/12/other.py".into()), "other");
        check(Source::SavedModel("/a/net.savedmodel".into()), "net");
        check(Source::SavedModel("/a/net/1/model.savedmodel".into()), "net");
        check(Source::SavedModel("/a/net/3".into()), "net");
        check(Source::Model("/a/net".into()), "net");
        assert!(
            name_of(&Source::Onnx("/a/...onnx".into())).unwrap_err().contains("can't be a model")
        );
    }

    #[test]
    fn two_models_of_one_name_are_refused() {
        let (one, two) = (Source::Onnx("a/x.onnx".into()), Source::Onnx("b/x.onnx".into()));
        let error = names(&[&one, &two], None).unwrap_err();
        assert!(
            error.starts_with("'a/x.onnx' and 'b/x.onnx' would both be the model 'x'"),
            "{error}"
        );
    }

    #[test]
    fn messages_name_what_was_given() {
        let places = LinkOrigins(vec![("/tmp/x/a/1/model.onnx".into(), "b/a.onnx".into())]);
        let found = places.named_in("can't open '/tmp/x/a/1/model.onnx'");
        assert_eq!(found, "can't open 'b/a.onnx'");
    }

    #[test]
    fn a_place_is_that_of_the_longest_path() {
        let mut places = LinkOrigins::default();
        places.add(Path::new("/t/a"), &Source::Model("m/a".into()));
        places.add(Path::new("/t/ab"), &Source::Onnx("f/ab.onnx".into()));
        places.add(Path::new("/t/c"), &Source::Python("f/c.py".into()));
        places.sort();
        let check = |message, expected| assert_eq!(places.named_in(message), expected);
        check("/t/a/1/x", "m/a/1/x");
        check("'/t/ab' /t/ab/1 /t/ab/1/model.onnx", "'f/ab.onnx' f/ab.onnx f/ab.onnx");
        check("/t/c/1/c.py /t/c/config.pbtxt", "f/c.py f/c.py");
    }

    #[test]
    fn a_configuration_names_the_file() {
        assert_eq!(
            config("python", Path::new("a/b\"c.py")),
            "backend: \"python\"\ndefault_model_filename: \"b\\\"c.py\"\n"
        );
    }
}
