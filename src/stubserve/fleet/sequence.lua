-- The id of a request's sequence, from the beginning of its body; "" without one.
--
-- Bodies are read as the server reads them: of equal names in JSON the first counts, of equal fields of protobuf the
-- last. The value of a header has no space around it, so an id in a body loses its own. Ids with the same first 128
-- bytes share a server.

local function trimmed(id)
  id = id:sub(1, 128)
  local inner = id:match("^%s*(.-)%s*$")
  return inner ~= "" and inner or id
end

-- JSON

-- The text of the string that begins at a quote, and where it ends
local function text(body, at)
  local parts, from = {}, at + 1
  while true do
    local stop = body:find('["\\]', from)
    if stop == nil then return nil end
    parts[#parts + 1] = body:sub(from, stop - 1)
    if body:byte(stop) == 34 then return table.concat(parts), stop + 1 end
    local code, after = body:match("^u(%x%x%x%x)()", stop + 1)
    if code == nil then
      local plain = body:sub(stop + 1, stop + 1)
      parts[#parts + 1] = ({b = "\b", f = "\f", n = "\n", r = "\r", t = "\t"})[plain] or plain
      from = stop + 2
    else
      local number = tonumber(code, 16)
      local low, behind = body:match("^\\u([dD][c-fC-F]%x%x)()", after)
      if number >> 10 == 54 and low then
        number = 65536 + ((number & 1023) << 10 | tonumber(low, 16) & 1023)
        after = behind
      end
      parts[#parts + 1] = utf8.char(number)
      from = after
    end
  end
end

-- Where the value that begins here ends
local function skip(body, at)
  local depth = 0
  repeat
    at = body:find(depth == 0 and "[^%s]" or '["%[%]{}]', at)
    local byte = at and body:byte(at)
    if byte == nil then return nil end
    if byte == 34 then
      repeat
        at = body:find('["\\]', at + 1)
        local escapes = at and body:byte(at) == 92
        if escapes then at = at + 1 end
      until not escapes
      if at == nil then return nil end
      at = at + 1
    elseif byte == 91 or byte == 123 then
      depth, at = depth + 1, at + 1
    elseif byte == 93 or byte == 125 then
      depth, at = depth - 1, at + 1
    else
      at = body:find("[,%]}%s]", at)
    end
  until depth <= 0
  return at
end

-- Where the value of an object's member begins
local function member(body, at, wanted)
  at = body:match("^%s*{()", at)
  while at do
    at = body:match('^[%s,]*()"', at)
    if at == nil then return nil end
    local name
    name, at = text(body, at)
    at = at and body:match("^%s*:%s*()", at)
    if at == nil or name == wanted then return at end
    at = skip(body, at)
  end
end

core.register_fetches("sequence_of_json", function(txn)
  local body = txn.f:req_body() or ""
  -- An underscore may be escaped.
  if not (body:find("sequence_id", 1, true) or body:find("\\u", 1, true)) then return "" end
  local at = member(body, 1, "parameters")
  at = at and member(body, at, "sequence_id")
  if at == nil then return "" end
  if body:byte(at) == 34 then return trimmed(text(body, at) or "") end
  local number = body:match("^%d+", at)
  return number ~= "0" and number or ""
end)

-- Protobuf

local function varint(body, at)
  local value = 0
  for place = 0, 9 do
    local byte = body:byte(at + place)
    if byte == nil then return nil end
    value = value | (byte & 127) << 7 * place
    if byte < 128 then return value, at + place + 1 end
  end
end

-- Calls `see` with the number of each field, and its value or where its content begins and ends
local function walk(body, at, last, see)
  while at <= last do
    local tag, value
    tag, at = varint(body, at)
    if tag == nil then return end
    local kind = tag & 7
    if kind == 0 or kind == 2 then
      value, at = varint(body, at)
      if value == nil then return end
      if kind == 0 then
        see(tag >> 3, value)
      else
        if value < 0 or at + value - 1 > last or at + value - 1 > #body then return end
        see(tag >> 3, at, at + value - 1)
        at = at + value
      end
    elseif kind == 1 or kind == 5 then
      at = at + (kind == 1 and 8 or 4)
    else
      return
    end
  end
end

-- `parameters` are field 4 of a ModelInferRequest, an entry's key field 1, its value field 2. An InferParameter has an
-- int64 (field 2), a string (field 3) or a uint64 (field 5).
core.register_fetches("sequence_of_grpc", function(txn)
  local body = txn.f:req_body() or ""
  if not body:find("sequence_id", 1, true) or body:byte(1) ~= 0 then return "" end
  local id = ""
  walk(body, 6, 5 + string.unpack(">I4", body, 2), function(number, first, last)
    if number ~= 4 or not last then return end
    local key, from, to
    walk(body, first, last, function(part, first, last)
      if part == 1 and last then key = body:sub(first, last) end
      if part == 2 and last then from, to = first, last end
    end)
    if key ~= "sequence_id" or not from then return end
    walk(body, from, to, function(part, value, last)
      if part == 3 and last then
        id = trimmed(body:sub(value, last))
      elseif not last and (part == 2 or part == 5) then
        -- As 64 bits without a sign
        local tens = (value >> 1) // 5
        id = value == 0 and "" or (tens > 0 and string.format("%d", tens) or "") .. value - tens * 10
      end
    end)
  end)
  return id
end)
