# launch.sed — the forms of CUDA's language that no macro can give a C++ compiler. The whole
# file is one line to sed (-z), so that a launch may be broken over several; no line is added.
#
#   kernel<4><<<grid, block, shared, stream>>>(a, b)
#     →  ::convoy::simt::Launch(grid, block, shared, stream).kernel("kernel<4>", kernel<4>)(a, b)
#   extern __shared__ [__align__(16)] float name[];
#     →  float* name = ::convoy::simt::dynamic_shared<float>();
#   __shared__ [__align__(16)] float name[4][32];         one name a declaration
#     →  typedef float name_shared[4][32];
#        name_shared& name = ::convoy::simt::shared<name_shared, decltype([] {})>("name", 16);
s/([A-Za-z_][A-Za-z0-9_:]*(<[^<>;]*>)?)[ \n]*<<<(([^>]|>[^>]|>>[^>])*)>>>/::convoy::simt::Launch(\3).kernel("\1", \1)/g
s/extern __shared__ (__align__\([0-9]+\) )?([A-Za-z_][A-Za-z0-9_ ]*) ([A-Za-z_][A-Za-z0-9_]*)\[\];/\2* \3 = ::convoy::simt::dynamic_shared<\2>();/g
s/__shared__ (__align__\(([0-9]+)\) )?([A-Za-z_][A-Za-z0-9_:<>, ]*) ([A-Za-z_][A-Za-z0-9_]*)((\[[^];]*\])*);/typedef \3 \4_shared\5; \4_shared\& \4 = ::convoy::simt::shared<\4_shared, decltype([] {})>("\4", \2 + 0);/g
