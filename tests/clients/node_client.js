// Calls the server with the stubs that gRPC for Node.js makes from the protocol.
//
//   node node_client.js PROTO_FOLDER ADDRESS
//
// It prints one line of JSON: what it was told.
const path = require("path");
const { promisify } = require("util");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [folder, address] = process.argv.slice(2);
const file = path.join(folder, "grpc_service.proto");
const definition = loader.loadSync(file, { includeDirs: [folder], keepCase: true, longs: Number });
const { GRPCInferenceService } = grpc.loadPackageDefinition(definition).inference;
const client = new GRPCInferenceService(address, grpc.credentials.createInsecure());
const call = (name, message) => promisify(client[name]).bind(client)(message);

const numbers = (buffer) => Array.from({ length: buffer.length / 4 }, (_, i) => buffer.readInt32LE(4 * i));
const raw = (values) => Buffer.from(new Int32Array(values).buffer);
const tensor = (values) => ({ name: "INPUT0", datatype: "INT32", shape: [1, values.length] });

function stream(messages) {
  return new Promise((resolve, reject) => {
    const both = client.modelStreamInfer();
    const found = [];
    both.on("data", (one) => found.push(one.error_message || numbers(one.infer_response.raw_output_contents[0])));
    both.on("error", reject);
    both.on("end", () => resolve(found));
    messages.forEach((one) => both.write(one));
    both.end();
  });
}

async function main() {
  const typed = { ...tensor([1, 2]), contents: { int_contents: [1, 2] } };
  const request = { model_name: "identity_int32", inputs: [typed] };
  const bytes = (values) => ({
    model_name: "identity_int32",
    inputs: [tensor(values)],
    raw_input_contents: [raw(values)],
  });
  const refused = await call("modelInfer", { model_name: "absent" }).catch((error) => error);
  const answers = {
    live: (await call("serverLive", {})).live,
    ready: (await call("modelReady", { name: "identity_int32" })).ready,
    inputs: (await call("modelMetadata", { name: "identity_int32" })).inputs.map((one) => one.name),
    typed: numbers((await call("modelInfer", request)).raw_output_contents[0]),
    raw: numbers((await call("modelInfer", bytes([3, 4, 5]))).raw_output_contents[0]),
    refused: [refused.code, refused.details],
    stream: await stream([bytes([6]), bytes([7, 8])]),
  };
  console.log(JSON.stringify(answers));
  client.close();
}

main();
