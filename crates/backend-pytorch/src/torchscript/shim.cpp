// The C interface through which the server executes models of TorchScript. PyTorch has only a C++
// one, whose binary interface changes with every release, so this file is compiled on the machine
// that serves the model, against the headers of the installed PyTorch.
//
// A tensor handle is a pointer to a tensor, as in PyTorch's own C interface for compiled models.

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/passes/tensorexpr_fuser.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/runtime/profiling_graph_executor_impl.h>
#include <torch/csrc/jit/serialization/import.h>
#include <caffe2/serialize/inline_container.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <cctype>
#include <cstddef>
#include <fstream>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

thread_local std::string last_error;

// An argument of `forward`: its name, and whether the model writes to it.
struct Argument {
  std::string name;
  std::string type;
  int kind;
  bool is_written;
};

struct Model {
  torch::jit::Module module;
  std::vector<Argument> arguments;
  bool takes_dictionary = false;
  // The model may have references to its inputs after a run.
  bool may_keep_inputs = false;
  // A run may wait for other threads, other computers or files.
  bool may_block = false;
  // The names of the operators and statements, in any order; some occur more than once.
  std::vector<std::string> operators;
};

struct Results {
  std::vector<c10::IValue> values;
};

template <typename Action>
int guarded(Action action) noexcept {
  try {
    action();
    return 0;
  } catch (const c10::Error& error) {
    try {
      last_error = error.what_without_backtrace();
    } catch (...) {
    }
  } catch (const std::exception& error) {
    try {
      last_error = error.what();
    } catch (...) {
    }
  } catch (...) {
    try {
      last_error = "unknown error";
    } catch (...) {
    }
  }
  return 1;
}

// Statements without a schema that keep no tensor after a run.
const std::set<std::string> plain_statements = {
    "prim::Constant",       "prim::If",             "prim::Loop",
    "prim::GetAttr",        "prim::ListConstruct",  "prim::ListUnpack",
    "prim::DictConstruct",  "prim::TupleConstruct", "prim::TupleUnpack",
    "prim::TupleIndex",     "prim::TupleSlice",     "prim::Uninitialized",
    "prim::unchecked_cast", "prim::isinstance",     "prim::NumToTensor",
    "prim::RaiseException", "prim::Print"};

// Operators that make a tensor refer to another one's memory, and that wait or use files.
const std::set<std::string> sharing_operators = {"aten::set_", "aten::set_data", "aten::set"};
const std::set<std::string> blocking_operators = {"aten::wait", "aten::save", "aten::from_file"};

// The name of a node's operator. Two uses of an operator get their own names, because the work of a run
// depends on values with one use and not with the other: `where` with only a condition, whose result has
// as many elements as the condition has true ones, and `Int` of a size, which a traced model converts to
// a tensor and back.
std::string operator_name(const torch::jit::Node* node) {
  std::string name = node->kind().toQualString();
  if (name == "aten::where" && node->inputs().size() == 1) {
    return name + ".condition";
  }
  if (name == "aten::Int" && node->inputs().size() == 1 &&
      node->inputs()[0]->node()->kind() == torch::jit::prim::NumToTensor) {
    return name + ".size";
  }
  return name;
}

// Looks for statements after which something other than the results may refer to an input. One that
// is unknown may do anything.
void find_effects(const torch::jit::Block* block, Model& model) {
  for (const torch::jit::Node* node : block->nodes()) {
    const std::string name = node->kind().toQualString();
    model.operators.push_back(operator_name(node));
    const bool is_known_space = node->kind().is_aten() || node->kind().is_prim();
    const auto* schema = node->maybeSchema();
    if (!is_known_space || (schema == nullptr && plain_statements.count(name) == 0)) {
      model.may_keep_inputs = true;
      model.may_block = model.may_block || name != "prim::SetAttr";
    }
    if (sharing_operators.count(name) != 0) {
      model.may_keep_inputs = true;
    }
    if (blocking_operators.count(name) != 0) {
      model.may_block = true;
    }
    if (schema != nullptr) {
      for (const auto& argument : schema->arguments()) {
        // A list or a dictionary that is written to may be the model's.
        const bool is_tensor = argument.type()->isSubtypeOf(*c10::OptionalType::ofTensor());
        const bool is_written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
        if (is_written && (!is_tensor || model.takes_dictionary)) {
          model.may_keep_inputs = true;
        }
      }
    }
    for (const torch::jit::Block* inner : node->blocks()) {
      find_effects(inner, model);
    }
  }
}

void find_arguments(Model& model) {
  const torch::jit::Method method = model.module.get_method("forward");
  const auto& arguments = method.function().getSchema().arguments();
  const size_t first =
      !arguments.empty() && arguments[0].type()->kind() == c10::TypeKind::ClassType ? 1 : 0;
  auto graph = method.graph()->copy();
  torch::jit::Inline(*graph);
  torch::jit::AliasDb aliases(graph);
  for (size_t i = first; i < arguments.size(); ++i) {
    const auto kind = arguments[i].type()->kind();
    const int number = kind == c10::TypeKind::TensorType ? 0
        : kind == c10::TypeKind::ListType                ? 1
        : kind == c10::TypeKind::DictType                ? 2
                                                         : 3;
    const bool is_written =
        i >= graph->inputs().size() || aliases.hasWriters(graph->inputs()[i]);
    model.arguments.push_back(
        {arguments[i].name(), arguments[i].type()->str(), number, is_written});
  }
  model.takes_dictionary = model.arguments.size() == 1 && model.arguments[0].kind == 2;
  find_effects(graph->block(), model);
}

void check_strings(const c10::IValue& value, const std::string& place) {
  const auto element = value.toList().elementType();
  if (element->kind() != c10::TypeKind::StringType) {
    throw std::invalid_argument(
        place + " must be of type Tensor or List[str], received List[" + element->str() + "]");
  }
}

void keep(Results& results, c10::IValue value) {
  if (value.isTuple()) {
    size_t index = 0;
    for (const auto& element : value.toTuple()->elements()) {
      if (element.isList()) {
        check_strings(element, "output at index " + std::to_string(index));
      } else {
        element.toTensor();
      }
      results.values.push_back(element);
      ++index;
    }
  } else if (value.isTensor()) {
    results.values.push_back(std::move(value));
  } else if (value.isList()) {
    check_strings(value, "output");
    results.values.push_back(std::move(value));
  } else {
    throw std::invalid_argument(
        "output must be of type Tensor, List[str] or Tuple containing one of these two types. It "
        "should not be a List / Dictionary of Tensors or a Scalar");
  }
}

// Copies each tensor to which something other than the results refers, such as the model's state,
// which later runs change.
void copy_shared(Results& results) {
  for (c10::IValue& value : results.values) {
    if (!value.isTensor() || !value.toTensor().defined()) {
      continue;
    }
    const at::Tensor& tensor = value.toTensor();
    if (tensor.use_count() > 1 || !tensor.has_storage() || tensor.storage().use_count() > 1) {
      value = tensor.clone();
    }
  }
}

// The names of operators that use files or other computers.
const std::set<std::string> outside_operators = {
    "save", "from_file", "rpc_async", "rpc_sync", "rpc_remote"};

void check_code(const char* code, size_t size, const std::string& place) {
  const auto is_word = [](char one) {
    return std::isalnum(static_cast<unsigned char>(one)) != 0 || one == '_';
  };
  for (size_t start = 0; start < size;) {
    size_t end = start;
    while (end < size && is_word(code[end])) {
      ++end;
    }
    const std::string word(code + start, end - start);
    if (outside_operators.count(word) != 0) {
      throw std::invalid_argument(
          "the model's code in '" + place + "' names '" + word +
          "', which may use files or other computers: a load request must not bring such a model");
    }
    start = end == start ? end + 1 : end;
  }
}

// Refuses a model whose code may use files or other computers. The archive is read by the reader that
// loads it. Other formats than the current archive are refused.
void check_untrusted(const std::string& path) {
  char start[4] = {};
  std::ifstream(path, std::ios::binary).read(start, sizeof(start));
  if (std::string(start, sizeof(start)) != "PK\x03\x04") {
    throw std::invalid_argument("the file is no archive of TorchScript");
  }
  caffe2::serialize::PyTorchStreamReader reader(path);
  for (const std::string& name : reader.getAllRecords()) {
    if (name == "model.json") {
      throw std::invalid_argument("a load request must not bring the first format of TorchScript");
    }
    const std::string ending = ".py";
    if (name.size() < ending.size() ||
        name.compare(name.size() - ending.size(), ending.size(), ending) != 0) {
      continue;
    }
    const auto record = reader.getRecord(name);
    check_code(static_cast<const char*>(std::get<0>(record).get()), std::get<1>(record), name);
  }
}

} // namespace

extern "C" {

// How the model is executed; -1 leaves PyTorch's default.
struct galatea_torch_options {
  int optimized;
  int inference_mode;
  int profiling;
  int executor;
  int fuser;
};

// An input: a tensor, or strings if it is null.
struct galatea_torch_input {
  at::Tensor* tensor;
  const char* const* texts;
  const size_t* lengths;
  size_t count;
  const char* key;
};

const char* galatea_torch_error() {
  return last_error.c_str();
}

int galatea_torch_load(const char* path, int inference_mode, Model** out) {
  return guarded([&] {
    c10::InferenceMode guard(inference_mode != 0);
    auto model = std::make_unique<Model>();
    model->module = torch::jit::load(std::string(path), at::Device(at::kCPU));
    find_arguments(*model);
    *out = model.release();
  });
}

// Fails if the code of the model at `path` may use files or other computers. Nothing is executed.
int galatea_torch_check_untrusted(const char* path) {
  return guarded([&] { check_untrusted(std::string(path)); });
}

void galatea_torch_free(Model* model) {
  delete model;
}

size_t galatea_torch_argument_count(const Model* model) {
  return model->arguments.size();
}

int galatea_torch_may_block(const Model* model) {
  return model->may_block ? 1 : 0;
}

// The name of the model's operator with this number; null if there are not as many.
const char* galatea_torch_operator(const Model* model, size_t index) {
  return index < model->operators.size() ? model->operators[index].c_str() : nullptr;
}

// The name, the type and the kind of an argument: 0 for a tensor, 1 for a list, 2 for a dictionary,
// 3 for anything else; -1 if there is none.
int galatea_torch_argument(const Model* model, size_t index, const char** name, const char** type) {
  if (index >= model->arguments.size()) {
    return -1;
  }
  const Argument& argument = model->arguments[index];
  *name = argument.name.c_str();
  *type = argument.type.c_str();
  return argument.kind;
}

void galatea_torch_inter_op_threads(int count) {
  guarded([&] { at::set_num_interop_threads(count); });
}

int galatea_torch_run(
    Model* model,
    const galatea_torch_options* options,
    const galatea_torch_input* inputs,
    size_t input_count,
    Results** out) {
  return guarded([&] {
    torch::jit::setGraphExecutorOptimize(options->optimized != 0);
    if (options->profiling >= 0) {
      torch::jit::getProfilingMode() = options->profiling != 0;
    }
    if (options->executor >= 0) {
      torch::jit::getExecutorMode() = options->executor != 0;
    }
    if (options->fuser >= 0) {
      torch::jit::setTensorExprFuserEnabled(options->fuser != 0);
    }
    c10::InferenceMode guard(options->inference_mode != 0);
    at::NoGradGuard no_grad;
    std::vector<c10::IValue> values;
    c10::Dict<std::string, at::Tensor> dictionary;
    for (size_t i = 0; i < input_count; ++i) {
      const galatea_torch_input& input = inputs[i];
      if (input.tensor == nullptr) {
        c10::List<std::string> list;
        list.reserve(input.count);
        for (size_t j = 0; j < input.count; ++j) {
          list.push_back(std::string(input.texts[j], input.lengths[j]));
        }
        values.emplace_back(std::move(list));
        continue;
      }
      // The memory is the request's, so a model that writes to an input or may keep it gets a copy.
      const size_t argument = model->takes_dictionary ? 0 : i;
      const bool is_copied = model->may_keep_inputs || argument >= model->arguments.size() ||
          model->arguments[argument].is_written;
      at::Tensor tensor = is_copied ? input.tensor->clone() : *input.tensor;
      if (model->takes_dictionary) {
        dictionary.insert(std::string(input.key), std::move(tensor));
      } else {
        values.emplace_back(std::move(tensor));
      }
    }
    if (model->takes_dictionary) {
      values.clear();
      values.emplace_back(std::move(dictionary));
    }
    auto results = std::make_unique<Results>();
    keep(*results, model->module.forward(std::move(values)));
    copy_shared(*results);
    *out = results.release();
  });
}

void galatea_torch_free_results(Results* results) {
  delete results;
}

size_t galatea_torch_result_count(const Results* results) {
  return results->values.size();
}

// A new handle of the tensor at `index`; null if the result is a list of strings.
int galatea_torch_result_tensor(const Results* results, size_t index, at::Tensor** out) {
  return guarded([&] {
    const c10::IValue& value = results->values.at(index);
    *out = value.isTensor() ? new at::Tensor(value.toTensor()) : nullptr;
  });
}

int galatea_torch_string_count(const Results* results, size_t index, size_t* count) {
  return guarded([&] { *count = results->values.at(index).toListRef().size(); });
}

int galatea_torch_string(
    const Results* results, size_t index, size_t element, const char** text, size_t* length) {
  return guarded([&] {
    const std::string& string = results->values.at(index).toListRef().at(element).toStringRef();
    *text = string.data();
    *length = string.size();
  });
}

} // extern "C"
