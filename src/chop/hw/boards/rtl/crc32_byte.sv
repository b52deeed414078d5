// CRC-32 of IEEE 802.3 (that of zlib) after one more byte; combinational.
//
// Start with all ones. The inverse of `crc` is the checksum; after the checksum itself has passed,
// the lowest byte first, `crc` is 32'hdebb20e3.
`default_nettype none

module crc32_byte (
    input  wire logic [31:0] crc,
    input  wire logic [ 7:0] data,
    output      logic [31:0] next
);

  localparam logic [31:0] POLYNOMIAL = 32'hedb88320;

  always_comb begin
    next = crc ^ {24'b0, data};
    for (int k = 0; k < 8; k++) next = next[0] ? (next >> 1) ^ POLYNOMIAL : next >> 1;
  end

endmodule

`default_nettype wire
