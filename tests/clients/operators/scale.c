/* A library with one operator for ONNX Runtime: `Scale` of the domain `galatea.tests`
 * multiplies its input by FACTOR.
 *
 * ONNX Runtime's package has no headers, so the needed parts of its C API are declared
 * here. The positions of functions in its table never change, nor does the beginning of
 * the description of an operator.
 *
 *   -DFACTOR=2     what inputs are multiplied by
 *   -DREFUSES      registering fails
 *   -DNO_ENTRY     the function that registers has another name
 *   -DLOADED="F"   opening the library makes the file F
 */

#include <stddef.h>
#include <stdint.h>

#ifndef FACTOR
#define FACTOR 2
#endif

#define API_VERSION 11
#define FLOAT_ELEMENTS 1

typedef struct Status Status;
typedef struct Options Options;
typedef struct Domain Domain;
typedef struct Context Context;
typedef struct Value Value;
typedef struct Shape Shape;
typedef void (*Function)(void);

typedef struct {
  const Function* (*get_api)(uint32_t version);
  const char* (*get_version)(void);
} ApiBase;

/* The fields of an operator of this version; later fields are not read. */
typedef struct Operator {
  uint32_t version;
  void* (*create_kernel)(const struct Operator*, const Function* api, const void* info);
  const char* (*name)(const struct Operator*);
  const char* (*provider)(const struct Operator*);
  int (*input_type)(const struct Operator*, size_t index);
  size_t (*input_count)(const struct Operator*);
  int (*output_type)(const struct Operator*, size_t index);
  size_t (*output_count)(const struct Operator*);
  void (*compute)(void* kernel, Context* context);
  void (*destroy_kernel)(void* kernel);
  int (*input_is_optional)(const struct Operator*, size_t index);
  int (*output_is_optional)(const struct Operator*, size_t index);
  void* later[16];
} Operator;

/* Functions by their index in the table. */
static const Function* api;
#define CreateStatus ((Status * (*)(int, const char*)) api[0])
#define CreateCustomOpDomain ((Status * (*)(const char*, Domain**)) api[26])
#define CustomOpDomain_Add ((Status * (*)(Domain*, const Operator*)) api[27])
#define AddCustomOpDomain ((Status * (*)(Options*, Domain*)) api[28])
#define GetTensorMutableData ((Status * (*)(Value*, float**)) api[51])
#define GetDimensionsCount ((Status * (*)(const Shape*, size_t*)) api[61])
#define GetDimensions ((Status * (*)(const Shape*, int64_t*, size_t)) api[62])
#define GetTensorShapeElementCount ((Status * (*)(const Shape*, size_t*)) api[64])
#define GetTensorTypeAndShape ((Status * (*)(const Value*, Shape**)) api[65])
#define KernelContext_GetInput ((Status * (*)(const Context*, size_t, Value**)) api[90])
#define KernelContext_GetOutput \
  ((Status * (*)(Context*, size_t, const int64_t*, size_t, Value**)) api[91])
#define ReleaseTensorTypeAndShapeInfo ((void (*)(Shape*))api[99])

static void* create_kernel(const Operator* op, const Function* table, const void* info) {
  (void)table;
  (void)info;
  return (void*)op;
}

static void destroy_kernel(void* kernel) { (void)kernel; }

static const char* name(const Operator* op) {
  (void)op;
  return "Scale";
}

/* NULL is the CPU. */
static const char* provider(const Operator* op) {
  (void)op;
  return NULL;
}

static int floats(const Operator* op, size_t index) {
  (void)op;
  (void)index;
  return FLOAT_ELEMENTS;
}

static size_t one(const Operator* op) {
  (void)op;
  return 1;
}

static int required(const Operator* op, size_t index) {
  (void)op;
  (void)index;
  return 0;
}

/* Operators of this version can't return errors; these calls can't fail. */
static void compute(void* kernel, Context* context) {
  int64_t dims[8];
  size_t rank = 0, count = 0;
  Value *input = NULL, *output = NULL;
  Shape* shape = NULL;
  float *from = NULL, *to = NULL;
  (void)kernel;
  KernelContext_GetInput(context, 0, &input);
  GetTensorTypeAndShape(input, &shape);
  GetDimensionsCount(shape, &rank);
  GetTensorShapeElementCount(shape, &count);
  if (rank <= sizeof(dims) / sizeof(dims[0])) {
    GetDimensions(shape, dims, rank);
    KernelContext_GetOutput(context, 0, dims, rank, &output);
    GetTensorMutableData(input, &from);
    GetTensorMutableData(output, &to);
    for (size_t i = 0; i < count; ++i) {
      to[i] = FACTOR * from[i];
    }
  }
  ReleaseTensorTypeAndShapeInfo(shape);
}

static const Operator scale = {
    .version = API_VERSION,
    .create_kernel = create_kernel,
    .name = name,
    .provider = provider,
    .input_type = floats,
    .input_count = one,
    .output_type = floats,
    .output_count = one,
    .compute = compute,
    .destroy_kernel = destroy_kernel,
    .input_is_optional = required,
    .output_is_optional = required,
};

#ifdef LOADED
#include <stdio.h>

__attribute__((constructor)) static void tell(void) {
  FILE* file = fopen(LOADED, "w");
  if (file != NULL) {
    fclose(file);
  }
}
#endif

#ifdef NO_ENTRY
#define RegisterCustomOps SomethingElse
#endif

/* Called for each session that uses the operator. The library owns the domain,
 * which is never freed: a list without a lock, as in many such libraries. */
Status* RegisterCustomOps(Options* options, const ApiBase* base) {
  static Domain* domain;
  Status* failure = NULL;
  api = base->get_api(API_VERSION);
  if (domain == NULL) {
    failure = CreateCustomOpDomain("galatea.tests", &domain);
    if (failure == NULL) {
      failure = CustomOpDomain_Add(domain, &scale);
    }
  }
#ifdef REFUSES
  return CreateStatus(1, "not today");
#endif
  return failure != NULL ? failure : AddCustomOpDomain(options, domain);
}
