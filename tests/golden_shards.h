// golden_shards.h — made by tests/make_shard_goldens.py; gzipped bytes in base64.
#pragma once

#include <cstdint>

// clang-format off
namespace golden {

// labels by number: 3, 0, 1; keys a/0001, a/0002, b/0003
constexpr const char* kTarUstar =
    "H4sIAAAAAAACA9PTZ6A5MAACMxMTMA0E6DQWtpmBuTmDgikDHUBpcUliEdBKhpEJ4uNzU0sS4+MHNv6N0OLf3AQopGAw"
    "Gv80B9W1DKNgBINEfWCOM9QryEsfuPxvaGiKnv+NTA1G8z89QGeAnzsvlxQXkMnr6eESBKRZgJiZgwlIWk+znAikRDxd"
    "HEMq5iSLVJ49x8Dsw+PB0MrMoNbOyFMtZzcDZIinq5/LOqeEptHsNFTzf3JO8aCq/41MRvM/XYAx12geGPH532ig87/h"
    "aP4fIGAwmgVG87+RXklFyQDmf0PM/A8a/xnN/3SIf4XkxIKSzPy80awwkvM/sBc4qPr/hsAiYTT/D7L+/5Ud55D6/7MZ"
    "eVzqtMpG+/9DGiSB8r+xXlYxDWsAgvW/sQHG+L+xyWj+pweoVspJTErNUbJSMNRRUCrPTCnJALJNRmcFRlb+H3zj/8aj"
    "+X+w1f9bLM8g1f/rGXn8Xv09MFr/j4JRMApGwSgYBUMOAACxVwByACgAAA==";

constexpr uint64_t kTarUstarOffsets[] = {2048, 6144, 8192};

// folders as classes: Mütze (a name of 319 bytes), hat
constexpr const char* kTarPax =
    "H4sIAAAAAAACA+3WsUrDQAAG4KtxkJJuLhaETI6Xu0siFBFUIk0gliIOjgY90kFqaU4IjoKDo0tB8Bl8gm6Z1dHNJ/Ah"
    "vCiKChUdElr8P8hdyJAMd//9oTa1N7pxFsj4SA5JKdibSTPzOP+4f33OmeCCWBmpwGmq4qH+PPmfHNGyBrHqradS2ccn"
    "/QTD74adfKzOpK33K6eDflKf0fWvYtmLUK+67sT8c+59zb/DPIcRiyH/pbvsdtqNerPYvo0w8Hf1PK8vY2FOj2uj1pWe"
    "FkN/cy+7OTT3H+6JEZkBuTDISl4zn5dHzeIl4XbHv906OCcwi/nvxao4xwRNZUJVpsro/5/yr0+Ab/3PBRPIfxUyRAD5"
    "f8+//o8p6///T/3PmcvQ/1PX/9H13af+f6yZT0t5hP4HAAAAAAAAAAAAAACYKi8BqFX3ACgAAA==";

constexpr uint64_t kTarPaxOffsets[] = {1536, 3584};

// the same with GNU's long names
constexpr const char* kTarGnu =
    "H4sIAAAAAAACA9PT19N38MnPS/fJzMtmoA0wgABctIEpEhsibm5uasCg4MNAB1BaXJJYpKDAMEJBcWqJfg4w+kcJ4gjf"
    "w3tKqlL1gcnUUK8gL300/okgQJnazMQEZ/43NDRFzf/GBibmwPxvMJr/aQ46A/zcebmkuIBMXk8PlyAgzQLEzBxMQNJ6"
    "muVEICXi6eIYUjEnmSfi/DkGZh8eD4ZWZga1w4w8b2SnSYEM8XT1c1nnlNDEMAqGYv7PSCwBFWhGtCrQSM7/hgbGJqP5"
    "f9Dlf5+ZZ5Hy/3VGnnuSh31G8/8oGAWjYBSMglEwCkbBKBgFo2AUjIJRMApGwSgYBaNgFIyCUTAKRsEoGAWjYBQMCgAA"
    "psPYzwAoAAA=";

constexpr uint64_t kTarGnuOffsets[] = {1536, 2560};

// labels 3 (hat), 1 (shoe), one without an image, 3
constexpr const char* kTfrecord =
    "H4sIAAAAAAACA/vDAAGnqvnXcv1k5JLiEszMTUxP1U/OSSwu1s9JTErNEWKVYuZiZOaS5hJAlitJrSgRYudi5WLOSCxB"
    "kszPyS8qLkhMToVIBrk7cSVx8UIkU/OS81NSU4QCufy5fDsD/Nx5gTYCref19HAJAtIsQMzMwQQkradZTgRSIp4ujiEV"
    "c5JFKs+eY2D24fFgaGVmUGtn5KmWs5sBcrinq5/LOqeEJi5RLh6IHRmpmekZJTBHq3GJQYTzk7JSk0v0k5LyK/QrcjPz"
    "hHiEuLg4GBga7ICm2Cc83i72FxoWSW9dJnP9whcWjFwyWMKCg4uNi6U4Iz+V1oFxZcc5pMCYzcjjUqdVRsXAqOAPdp4J"
    "DYyOyIveXNNoFhiUOfTnhgOFf4ZICt5ieQYp0tYz8vi9+nuAipFWI7O5FwCpiKGFzgMAAA==";

// labels 1, 2, 3
constexpr const char* kTfrecordFromOne =
    "H4sIAAAAAAACA7vPAAHB6h8Kue4wcklxCWbmJqan6ifnJBYX6+ckJqXmCLFKMXMxMnJJcwlA5fJz8ouKCxKTU4XYuVi5"
    "mIPcnbiSuHghkql5yfkpqSlCgVz+XL6dAX7uvEBDgTbwenq4BAFpFiBm5mACktbTLCcCKRFPF8eQijnJIpVnzzEw+/B4"
    "MLQyM6i1M/JUy9nNALnN09XPZZ1TQhOXKBcPxI6M1Mz0jBKIu5i51LjEIML5SVmpySX6SUn5FfoVuZl5QjxCXFwcDAwN"
    "dkBT7HvnbFp3n2jvMtHau1d2nEPy7mxGHpc6rTIqeveQ1IRy4r3LTGvvbrE8g+Td9Yw8fq/+HqCid70Pf8oDAE7jYxnN"
    "AgAA";

// 3 images, 5 rows of 4
constexpr const char* kIdxImages =
    "H4sIAAAAAAACA2Ng4GBmYGAAYVYgZmFgZGJmYWVj5+Dk4ubh5eMXEBQSFhEVE5eQlJKWkZWTV1BUUlZRVVPX0NTS1tHV"
    "0zcwNDI2MTUzt7C0sgYANQWypkwAAAA=";

// 7, 0, 1
constexpr const char* kIdxLabels =
    "H4sIAAAAAAACA2Ng4GBkYGBgZmdgBACXmgh8CwAAAA==";

}  // namespace golden
// clang-format on
